// An executable's code in one context: its kernels, and what CUDA is told of each launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "driver.h"
#include "kernels/kernel_shape.h"
#include "owned.h"

namespace aspen::cuda {

class Executable;
class LibraryCalls;

class LaunchCode {
 public:
  // Loads the code. The context is current. Throws DeviceError.
  LaunchCode(const HomeContext& home, const Executable& executable);
  // Finds the kernels of all ops, before anything else is asked for. Adds ops to `libraries` that are theirs. Throws DeviceError.
  void prepare(LibraryCalls& libraries);

  // Whether each of the code's kernels first waits for the launches before it. Throws DeviceError.
  bool kernels_wait() const;
  // Makes the tensor maps of a run's addresses. Throws DeviceError, with nothing given to the device.
  void encode_maps(std::span<const DevicePointer> addresses);
  // What CUDA is told of a launch that is no library's. Maps were made of the addresses. What this points to stays until the next
  // call.
  KernelNodeParams params(uint32_t launch, std::span<const DevicePointer> addresses);

 private:
  struct Kernel {
    Function function;
    unsigned threads, shared_bytes, blocks_per_tile, most_ops;
  };
  // Memory as aligned as the maps in it want.
  using Storage = std::vector<TensorMap>;

  // An op whose kernel copies by tensor maps. Its first argument is made again where addresses have changed.
  struct Mapped {
    KernelShape shape;
    Storage arguments;  // in the place of the first ones addresses, and from first_map on the maps
    size_t first_map = 0;
    std::vector<DevicePointer> addresses;  // that are in the maps; none where some map could not be made
  };

  void find_kernels(LibraryCalls& libraries);
  // Reads a global of the code into `value`. Returns the result of cuModuleGetGlobal, and throws where another call fails.
  template <class T>
  Result read(const std::string& name, T& value) const;
  KernelShape shape_of(size_t op, const std::string& kernel) const;
  Kernel find_kernel(const std::string& name, const KernelShape& shape) const;
  const Kernel& kernel_of(size_t op) const;
  void prepare_maps(size_t op, const KernelShape& shape);
  void encode_map(size_t op, const TensorShape& tensor, DevicePointer address, TensorMap& map) const;
  void check_launches(const LibraryCalls& libraries) const;
  // Where arguments of launches of several ops are put together.
  void take_room();
  void copy_boxes();
  // What a kernel takes for an op. It stays until the next call, or longer.
  std::span<const std::byte> argument_of(uint32_t op, std::span<const DevicePointer> addresses) const;
  // What a launch's kernel takes for all its ops, for as long.
  const void* first_argument(uint32_t launch, std::span<const DevicePointer> addresses);

  const Driver& driver_;
  const Executable& executable_;
  Owned<&Driver::cuModuleUnload> module_;
  std::vector<Kernel> kernels_;           // by the number in their name
  std::map<size_t, Mapped> mapped_;       // by op; its arguments are those of the run that is being issued
  std::map<uint32_t, Storage> together_;  // by launch, the arguments of its ops
  Owned<&Driver::cuMemFree> boxes_;       // of all launches' tiles
  std::vector<DevicePointer> boxes_of_;   // of each launch's
  void* arguments_[2] = {};               // of the launch that was asked for last, as CUDA wants them
};

}  // namespace aspen::cuda
