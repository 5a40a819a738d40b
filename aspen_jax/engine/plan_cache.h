// Makes a Plan on this machine's kernels from graph bytes, once per content.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "plan.h"
#include "recorder.h"

namespace aspen {

// The Plan of these bytes. While one made from equal bytes is still in use it is returned again, so that executables of the
// same graph share prepared ops and the memory of runs. Throws what `parse_graph` and `Plan` throw, and std::invalid_argument
// where ASPEN_CPU_TARGET names no target of this machine.
std::shared_ptr<const Plan> plan_of(std::span<const std::byte> bytes);

// A plan that came from `plan_of` and is in use, and the bytes that it was made of. Slow: it looks at every plan.
PlanInUse plan_in_use(const Plan* plan);

// Plans made of these bytes from now on are trusted (see Plan): whoever calls has built the graph and knows its edges.
void trust(std::span<const std::byte> bytes);

// Lets graphs that are loaded from now on name the kernels of a shared library, and gives their names. Throws
// std::invalid_argument where the library cannot be loaded (kernel_library.h) or a name is taken.
std::vector<std::string> register_kernels(const std::string& path);

}  // namespace aspen
