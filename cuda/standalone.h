// A run on a GPU without XLA, from memory of the host to memory of the host: for checks of kernels and executors.
#pragma once

#include <memory>
#include <span>

#include "executable.h"

namespace aspen::cuda {

// The first GPU's memory and stream for runs of an executable.
class Standalone {
 public:
  // Throws DeviceError.
  explicit Standalone(std::unique_ptr<Executable> executable);
  ~Standalone();
  Standalone(const Standalone&) = delete;
  Standalone& operator=(const Standalone&) = delete;

  const Graph& graph() const { return executable_->graph(); }

  // Copies operands in, runs, copies results out. Results are filled with a pattern of NaN before. One run at a time. Throws
  // DeviceError.
  void run(std::span<const void* const> operands, std::span<void* const> results);

 private:
  void release() noexcept;

  const Driver& driver_;
  std::unique_ptr<Executable> executable_;
  Device device_ = 0;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
  std::vector<DevicePointer> buffers_;
};

}  // namespace aspen::cuda
