// Which instruction set the kernels are compiled for, and the choice between those this machine can run.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "aspen_jax/engine/kernel.h"

namespace aspen::cpu {

// The targets in ascending order of preference.
// kAmx: the kernels of kAvx512, and matrix units for bfloat16.
enum class Target { kPortable, kAvx2, kAvx512, kAmx };

std::string_view name(Target target);

// The targets that were compiled in, in ascending order of preference; a build may leave some out (CMakeLists.txt).
std::vector<Target> compiled_targets();

// The targets that this machine can run, compiled in or not, in ascending order of preference; never empty.
std::vector<Target> runnable_targets();

// The targets that were compiled in and that this machine can run, in ascending order of preference; never empty.
std::vector<Target> available_targets();

// The best of `available_targets`, or the one that the environment variable ASPEN_CPU_TARGET names; read once, at the first
// call. Throws std::invalid_argument, naming the value and the choices, if that variable names no available target.
Target chosen_target();

// The kernels of an available target.
std::span<const Kernel> kernels(Target target);

// The most rows for which a product's kernels on an available target read the right operand once, in place (gemm.h).
int few_rows(Target target);

}  // namespace aspen::cpu
