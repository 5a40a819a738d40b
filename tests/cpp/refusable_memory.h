// Memory that may be refused: `operator new`, and what an Arena takes. For the whole program or library whose one source includes
// this and says what is refused. Not inlined: the compiler would see `free` behind `operator new`, and warn.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <new>

namespace aspen::testing {

// Asked at each request. Defined by whoever includes this.
bool is_refused();

inline void* taken(size_t size, size_t alignment) {
  void* memory = nullptr;
  if (is_refused() || posix_memalign(&memory, std::max(alignment, sizeof(void*)), size == 0 ? 1 : size) != 0) return nullptr;
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
[[gnu::noinline]] void* operator new[](size_t size, const std::nothrow_t&) noexcept {
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
[[gnu::noinline]] void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
