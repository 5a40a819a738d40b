// The CUDA back-end's part of aspen_jax._engine.
#pragma once

#include <nanobind/nanobind.h>

namespace aspen::cuda {

void define(nanobind::module_& module);

}  // namespace aspen::cuda
