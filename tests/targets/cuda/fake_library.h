// What the fakes of NVIDIA's libraries share: memory and streams are those of the fake of CUDA's driver.
#pragma once

#include <cstddef>
#include <functional>

#include "cuda/driver.h"
#include "cuda/kernels/tile.h"

extern "C" {
bool fake_cuda_has(aspen::cuda::DevicePointer data, size_t bytes);
void fake_cuda_give(aspen::cuda::Stream stream, const std::function<void()>& work);
}

namespace aspen::cuda {

inline float load_element(ElementType type, const void* data, int64_t index) {
  if (type == kFloat32) return static_cast<const float*>(data)[index];
  return as_float(type == kBFloat16 ? BFloat16::load(data, index) : Float16::load(data, index));
}
inline void store_element(ElementType type, void* data, int64_t index, float value) {
  if (type == kFloat32) {
    static_cast<float*>(data)[index] = value;
  } else if (type == kBFloat16) {
    BFloat16::store(data, index, as_bits(value));
  } else {
    Float16::store(data, index, as_bits(value));
  }
}

}  // namespace aspen::cuda
