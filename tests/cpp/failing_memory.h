// Memory that the system refuses, for the whole program whose one source includes this. Both `operator new` and what an Arena
// takes. Not inlined: the compiler would see `free` behind `operator new`, and warn.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace aspen::testing {

// Refuses the `first`-th request from now on, counted from 0, and `count` in all. Counts requests while it lives.
class Refusal {
 public:
  static constexpr int64_t kAll = INT64_MAX / 2;

  Refusal(int64_t first, int64_t count) {
    first_.store(first);
    count_.store(count);
    requests_.store(0);
    is_on_.store(true);
  }
  ~Refusal() { end(); }
  void end() { is_on_.store(false); }
  // Whether any request was refused.
  bool happened() const { return requests_.load() > first_.load(); }

  static bool refuses() {
    if (!is_on_.load(std::memory_order_acquire)) return false;
    const int64_t number = requests_.fetch_add(1);
    return number >= first_.load() && number - first_.load() < count_.load();
  }

 private:
  static inline std::atomic<bool> is_on_{false};
  static inline std::atomic<int64_t> requests_{0}, first_{0}, count_{0};
};

inline void* taken(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (Refusal::refuses() || posix_memalign(&memory, std::max(alignment, sizeof(void*)), size == 0 ? 1 : size) != 0)
    return nullptr;
  return memory;
}

inline void* taken_or_thrown(size_t size, size_t alignment) {
  if (void* const memory = taken(size, alignment)) return memory;
  throw std::bad_alloc();
}

}  // namespace aspen::testing

extern "C" void* aligned_alloc(size_t alignment, size_t size) noexcept { return aspen::testing::taken(size, alignment); }

[[gnu::noinline]] void* operator new(size_t size) {
  return aspen::testing::taken_or_thrown(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new[](size_t size) {
  return aspen::testing::taken_or_thrown(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  return aspen::testing::taken_or_thrown(size, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new[](size_t size, std::align_val_t alignment) {
  return aspen::testing::taken_or_thrown(size, static_cast<size_t>(alignment));
}
[[gnu::noinline]] void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return aspen::testing::taken(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete[](void* memory, size_t, std::align_val_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
