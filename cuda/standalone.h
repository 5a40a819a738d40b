// Runs on a GPU without XLA, from memory of the host to memory of the host: for checks of kernels and executors.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "executable.h"

namespace aspen::cuda {

// Milliseconds of a run, from each round.
struct RunTimes {
  std::vector<float> device;  // between events of the stream
  std::vector<float> host;    // until the run was given to the device
};

class Standalone {
 public:
  // On the first GPU. Throws DeviceError.
  explicit Standalone(std::unique_ptr<Executable> executable);
  ~Standalone();
  Standalone(const Standalone&) = delete;
  Standalone& operator=(const Standalone&) = delete;

  const Graph& graph() const { return executable_->graph(); }

  // Copies operands to memory of the device that is taken for this run, runs, and copies results back; results, and the workspace
  // where it is not the executable's, are NaN before. A result lies in the operand whose number `lies_in` has for it, as XLA lets
  // it; -1: in memory of its own. If `captured` the run is captured into a CUDA graph first, as XLA does. Then it is timed, with
  // operands where they are and as the run has left them. Throws DeviceError.
  RunTimes run(std::span<const void* const> operands, std::span<void* const> results, std::span<const int32_t> lies_in,
               bool captured, int rounds);

 private:
  void release() noexcept;
  void give(std::span<const DevicePointer> buffers, bool captured);

  const Driver& driver_;
  std::unique_ptr<Executable> executable_;
  Device device_ = 0;
  Context context_ = nullptr;
  Stream stream_ = nullptr;
};

}  // namespace aspen::cuda
