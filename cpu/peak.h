// The yardstick of the benchmarks: how fast one core of this machine multiplies and adds, now.
#pragma once

#include "target.h"

namespace aspen::cpu {

// Floating-point operations a second (a fused multiply-add is two) of a loop of independent float32 multiply-adds in registers,
// on the calling thread, with the vectors of an available target. Measures for about 20 ms; the best of several short runs.
double peak_flops(Target target);

}  // namespace aspen::cpu
