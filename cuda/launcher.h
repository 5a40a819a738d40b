// The seam between a schedule and a device: all that is ever asked of CUDA while a graph runs.
#pragma once

#include <cstdint>

#include "schedule.h"

namespace aspen::cuda {

// Streams, events and launches are numbered as in the schedule. Each call returns nullptr, or what went wrong; the message lives
// as long as the launcher.
class Launcher {
 public:
  virtual ~Launcher() = default;
  virtual const char* launch(uint32_t stream, uint32_t launch) noexcept = 0;
  virtual const char* record(uint32_t stream, uint32_t event) noexcept = 0;
  virtual const char* wait(uint32_t stream, uint32_t event) noexcept = 0;
};

struct Issued {
  const char* error = nullptr;  // the first, or nullptr
  uint32_t command = 0;         // the one that failed
};

// Gives a launcher the commands of a schedule. After an error nothing more is launched, but streams go on to be joined, so that
// the caller's stream is safe to use.
Issued issue(const Schedule& schedule, Launcher& launcher) noexcept;

}  // namespace aspen::cuda
