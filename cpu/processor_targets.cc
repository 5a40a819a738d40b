// Prints which of ASPEN_CPU_TARGETS this machine can run, as a list of cmake, which compiles and runs this program.
#include <cstdio>

#include "processor.h"

int main() {
  std::fputs("portable", stdout);
#if defined(__x86_64__)
  if (aspen::cpu::has_avx2()) std::fputs(";avx2", stdout);
  if (aspen::cpu::has_avx512()) std::fputs(";avx512", stdout);
#endif
}
