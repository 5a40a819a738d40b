// Ops that libraries of NVIDIA's compute, in one context.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "cublas.h"
#include "cudnn.h"
#include "driver.h"
#include "kernels/kernel_shape.h"
#include "library_call.h"
#include "owned.h"

namespace aspen::cuda {

class Executable;

// The context is current at each call.
class LibraryCalls {
 public:
  LibraryCalls(const HomeContext& home, const Executable& executable);

  // Adds an op if its kernel's shape names something for a library, and says whether it does. Throws DeviceError.
  bool add(size_t op, const KernelShape& shape);
  bool contains_op(uint32_t op) const { return calls_.contains(op); }
  bool contains(uint32_t launch) const;

  // Gives a launch that it contains to a stream. `addresses` are those of all ops. Throws DeviceError.
  void give(Stream stream, uint32_t launch, std::span<const DevicePointer> addresses);
  // What that gives to a stream, as a CUDA graph. Throws DeviceError.
  Owned<&Driver::cuGraphDestroy> record(uint32_t launch, std::span<const DevicePointer> addresses);

 private:
  void add_product(size_t op, const LibraryProduct& product);
  void add_convolution(size_t op, const LibraryConvolution& convolution);
  // What a library computes is one launch, and reads inputs of the op. Throws DeviceError.
  void check_inputs(size_t op, std::span<const int32_t> inputs) const;
  void open_recording();

  const HomeContext& home_;
  const Driver& driver_;
  const Executable& executable_;
  Owned<&Cudnn::cudnnDestroy> cudnn_;                     // if there are convolutions
  Owned<&Cublas::cublasLtDestroy> cublas_;                // if there are products
  std::map<size_t, std::unique_ptr<LibraryCall>> calls_;  // by op, which is one launch
  Owned<&Driver::cuStreamDestroy> recording_;             // if there are calls, what captures them
};

}  // namespace aspen::cuda
