// What Python sees of the scheduling lab: simulated time, and runs on threads of its own.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <span>

#include "plan.h"

namespace aspen {

void define_lab(nanobind::module_& module);

// `_engine.Plan.run_placed`, behind the arrays: `lab` holds its other arguments, in their order, and `held` what must live as
// long as lanes are at work.
nanobind::tuple run_in_lab(const std::shared_ptr<const Plan>& plan, std::span<const void* const> operands,
                           std::span<void* const> results, nanobind::object held, nanobind::args lab);

}  // namespace aspen
