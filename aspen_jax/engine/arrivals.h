// Runs that begin before their operands are complete: tiles wait for the pieces of operands that they read.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "failure.h"
#include "observer.h"
#include "plan.h"

namespace aspen {

// Which tiles of a plan wait for which pieces. Immutable; made once for many runs.
//
// To Algorithm 1 a piece is a tile without work: one more parent of each tile that reads it, and one more to walk through before
// the run is over. So tiles need not know what they wait for, and a run lives until all of its pieces have arrived.
//
// Behind the pieces comes one that belongs to no operand, the *entry*. It arrives when the run has a slot in the Ready Pool, and
// every tile waits for it that has no parent tile. Until then other pieces may arrive, and none makes a tile ready.
class Arrivals {
 public:
  // The first counts[0] of `tiles` wait for piece 0, the next counts[1] for piece 1, and so on. Throws std::invalid_argument
  // where these do not fit together, or the plan has no such tile.
  Arrivals(std::shared_ptr<const Plan> plan, std::span<const int64_t> counts, std::span<const int64_t> tiles);

  const std::shared_ptr<const Plan>& plan() const { return plan_; }
  size_t num_pieces() const { return first_tile_.size() - 2; }
  size_t entry() const { return num_pieces(); }
  std::span<const uint32_t> tiles_of(size_t piece) const {
    return std::span(tiles_).subspan(first_tile_[piece], first_tile_[piece + 1] - first_tile_[piece]);
  }
  // How many parent tiles, pieces and entries each tile waits for.
  std::span<const uint32_t> parents() const { return parents_; }

 private:
  std::shared_ptr<const Plan> plan_;
  std::vector<size_t> first_tile_;  // num_pieces + 2 entries
  std::vector<uint32_t> tiles_;
  std::vector<uint32_t> parents_;
};

// A run that waits for pieces, for those who bring them; see Runtime::start. It may outlive the run.
class ArrivingRun {
 public:
  // `arrive` counts a piece down, and ends the run with the last one. `fail` says why the run ends with an error; it is called
  // only while a piece is missing.
  struct Run {
    std::function<void(size_t piece)> arrive;
    std::function<void(std::string_view why)> fail;
  };

  ArrivingRun(size_t num_pieces, Run run);

  // The bytes of a piece are where the run reads them. From any thread. Does nothing after `cancel`. Throws
  // std::invalid_argument where there is no such piece, it has arrived already, or this process is a fork of the run's.
  void arrived(size_t piece);

  // Ends the run with an error. Tiles that have begun still end; `done` follows. Does nothing if all pieces have arrived.
  void cancel(std::string_view why) noexcept;

  // Whether this process began the run; a fork of it has none of its workers.
  bool is_of_this_process() const noexcept;
  // Throws std::invalid_argument in a fork.
  void check_process() const;

 private:
  enum class Piece : uint8_t { kMissing, kArrived, kCancelled };

  const Run run_;
  const int process_;
  std::atomic<bool> cancelled_{false};
  std::vector<std::atomic<Piece>> pieces_;
};

// Tiles of a run as they end, for one reader or several. Only those that are asked for, and only where they did not fail.
class EndedTiles final : public Observer {
 public:
  // Whether each tile is asked for. Throws std::bad_alloc.
  explicit EndedTiles(std::span<const uint8_t> wanted);

  void on_tile(const TileEvent& event) noexcept override;

  // Tells readers that the run is over, after its last tile.
  void close(const Failure& failure) noexcept;

  // The tiles that have ended since the last call, in that order. Waits until there is one, the run is over, or time has passed
  // (forever if none is given).
  std::vector<int32_t> take(std::optional<double> seconds);

  // Waits until the run is over; its error, or nothing if time has passed before.
  std::optional<std::string> error(std::optional<double> seconds);

  // Waits until the run is over. Takes no memory.
  void wait_for_end() noexcept;

 private:
  template <typename Is>
  void wait(std::unique_lock<std::mutex>& lock, std::optional<double> seconds, const Is& is);

  const std::vector<uint8_t> wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int32_t> ended_;  // has room for all
  std::optional<Failure> failure_;
};

}  // namespace aspen
