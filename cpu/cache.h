// How large this machine's caches are, for kernels that keep blocks of their operands in them.
#pragma once

#include <cstdint>

namespace aspen::cpu {

// Bytes of a core's L2 cache, as the operating system says; 1 MiB where it does not.
int64_t l2_cache_bytes();

}  // namespace aspen::cpu
