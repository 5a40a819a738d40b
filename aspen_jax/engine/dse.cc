#include "dse.h"

#include <chrono>
#include <string>

namespace aspen {
namespace {

int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

bool execute(RunState& run, uint32_t tile, const Dse& dse, const Pulse& pulse) noexcept {
  Observer* const observer = run.observer();
  const int64_t begin = observer == nullptr ? 0 : now_ns();
  const char* const message = compute(run, tile, dse.scratch.data(), pulse, dse.team);
  const bool has_paused = message == kPaused;
  if (observer != nullptr) [[unlikely]] {
    observer->on_tile({&run.plan(), run.id(), static_cast<int32_t>(tile), dse.worker, begin, now_ns(),
                       message != nullptr && !has_paused, has_paused});
  }
  if (has_paused) [[unlikely]]
    return false;
  if (message != nullptr) [[unlikely]]
    run.fail([&] { return run.plan().describe_tile(tile) + " failed: " + message; });
  return true;
}

void ensure_scratch(RunState& run, const Dse& dse) noexcept {
  const size_t bytes = run.plan().scratch_bytes();
  if (bytes <= dse.scratch.size() || dse.scratch.grow(bytes)) [[likely]]
    return;
  run.fail([&] { return "out of memory: a worker needs " + std::to_string(bytes) + " bytes of scratch; free some memory"; },
           Failure::Kind::kOutOfMemory);
}

}  // namespace aspen
