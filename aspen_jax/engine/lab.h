// What Python sees of simulated time.
#pragma once

#include <nanobind/nanobind.h>

namespace aspen {

void define_lab(nanobind::module_& module);

}  // namespace aspen
