#include "cache.h"

#include <unistd.h>

namespace aspen::cpu {

int64_t l2_cache_bytes() {
  static const int64_t bytes = [] {
#if defined(_SC_LEVEL2_CACHE_SIZE)
    if (const int64_t said = sysconf(_SC_LEVEL2_CACHE_SIZE); said > 0) return said;
#endif
    return int64_t{1} << 20;
  }();
  return bytes;
}

}  // namespace aspen::cpu
