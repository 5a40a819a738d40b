// What Python sees of all runs of a time: `_engine.Recorder`.
#pragma once

#include <nanobind/nanobind.h>

namespace aspen {

void define_recorder(nanobind::module_& module);

}  // namespace aspen
