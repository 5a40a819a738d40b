// Preloaded by LD_PRELOAD: a system that refuses memory to one library, or threads to all.
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "../cpp/refusable_memory.h"

namespace {

struct Range {
  uintptr_t begin = 0, end = 0;
  bool holds(uintptr_t address) const { return address >= begin && address < end; }
};

// Where libraries lie: the one that memory is refused to, and those that ask on behalf of others.
Range victim, standard_library, own;
std::atomic<bool> is_on{false}, refuses_threads{false};
std::atomic<int64_t> requests{0}, first_refused{0}, num_refused{0};
thread_local bool is_looking = false;

Range range_of(const char* part) {
  struct Search {
    const char* part;
    Range range;
  } search{part, {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* data) {
        auto& wanted = *static_cast<Search*>(data);
        if (std::strstr(info->dlpi_name, wanted.part) == nullptr) return 0;
        for (int i = 0; i < info->dlpi_phnum; ++i) {
          const auto& segment = info->dlpi_phdr[i];
          if (segment.p_type != PT_LOAD) continue;
          const uintptr_t begin = info->dlpi_addr + segment.p_vaddr;
          if (wanted.range.begin == 0) wanted.range.begin = begin;
          wanted.range.end = begin + segment.p_memsz;
        }
        return 1;
      },
      &search);
  return search.range;
}

// Whether the victim asks, itself or by the standard library, and without Python's lock: nanobind, which is part of the module
// and holds that lock, aborts where it gets no memory.
bool is_victims() {
  static const auto has_lock = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  if (has_lock() != 0) return false;
  constexpr int kDeepest = 16;
  void* frames[kDeepest];
  is_looking = true;
  const int count = backtrace(frames, kDeepest);
  is_looking = false;
  for (int i = 0; i < count; ++i) {
    const auto address = reinterpret_cast<uintptr_t>(frames[i]);
    if (!own.holds(address) && !standard_library.holds(address)) return victim.holds(address);
  }
  return false;
}

}  // namespace

namespace aspen::testing {

bool is_refused() {
  if (!is_on.load(std::memory_order_acquire) || is_looking || !is_victims()) return false;
  const int64_t number = requests.fetch_add(1);
  return number >= first_refused && number - first_refused < num_refused;
}

}  // namespace aspen::testing

extern "C" {

// Refuses the first-th request of the library whose name holds `part` from now on, counted from 0, and `count` in all.
void refuse_memory(const char* part, int64_t first, int64_t count) {
  victim = range_of(part);
  if (victim.begin == 0) std::abort();
  standard_library = range_of("libstdc++");
  own = range_of("libfailing_system");
  void* frames[1];
  backtrace(frames, 1);  // which loads a library at its first call
  first_refused = first;
  num_refused = count;
  requests.store(0);
  is_on.store(true, std::memory_order_release);
}

// Ends that; how many requests there were.
int64_t give_memory() {
  is_on.store(false);
  return requests.load();
}

void refuse_threads(int refuse) { refuses_threads.store(refuse != 0); }

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*start)(void*), void* argument) {
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(dlsym(RTLD_NEXT, "pthread_create"));
  return refuses_threads.load() ? EAGAIN : create(thread, attributes, start, argument);
}

}  // extern "C"
