#include "arrivals.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <utility>

namespace aspen {

Arrivals::Arrivals(std::shared_ptr<const Plan> plan, std::span<const int64_t> counts, std::span<const int64_t> tiles)
    : plan_(std::move(plan)), parents_(plan_->graph().parents) {
  const std::span<const uint32_t> of_tiles = plan_->graph().parents;
  first_tile_.reserve(counts.size() + 2);
  first_tile_.push_back(0);
  for (const int64_t count : counts) {
    if (count < 0 || static_cast<uint64_t>(count) > tiles.size() - first_tile_.back()) {
      throw std::invalid_argument("the pieces' counts of tiles do not fit " + std::to_string(tiles.size()) + " tiles");
    }
    first_tile_.push_back(first_tile_.back() + static_cast<size_t>(count));
  }
  if (first_tile_.back() != tiles.size()) {
    throw std::invalid_argument("the pieces' counts add up to " + std::to_string(first_tile_.back()) + " tiles, and there are " +
                                std::to_string(tiles.size()));
  }
  tiles_.reserve(tiles.size() + plan_->roots().size());
  for (const int64_t tile : tiles) {
    if (tile < 0 || static_cast<uint64_t>(tile) >= of_tiles.size()) {
      throw std::invalid_argument("tile " + std::to_string(tile) + " waits for a piece, and the graph has " +
                                  std::to_string(of_tiles.size()) + " tiles");
    }
    tiles_.push_back(static_cast<uint32_t>(tile));
    ++parents_[static_cast<size_t>(tile)];
  }
  for (const int32_t root : plan_->roots()) {
    tiles_.push_back(static_cast<uint32_t>(root));
    ++parents_[static_cast<size_t>(root)];
  }
  first_tile_.push_back(tiles_.size());
}

ArrivingRun::ArrivingRun(size_t num_pieces, Run run) : run_(std::move(run)), process_(getpid()), pieces_(num_pieces) {}

bool ArrivingRun::is_of_this_process() const noexcept { return getpid() == process_; }

void ArrivingRun::check_process() const {
  if (!is_of_this_process()) throw std::invalid_argument("the run belongs to the process that this one was forked from");
}

void ArrivingRun::arrived(size_t piece) {
  if (piece >= pieces_.size()) {
    throw std::invalid_argument("there is no piece " + std::to_string(piece) + "; the run waits for " +
                                std::to_string(pieces_.size()));
  }
  check_process();
  Piece was = Piece::kMissing;
  // Relaxed: it only decides who counts the piece. The bytes are published by the counters (is_last_parent_of_shared), and by
  // the row of the Ready Pool into which the tile goes.
  if (!pieces_[piece].compare_exchange_strong(was, Piece::kArrived, std::memory_order_relaxed)) {
    if (was == Piece::kCancelled) return;
    throw std::invalid_argument("piece " + std::to_string(piece) + " has arrived already; each arrives once");
  }
  run_.arrive(piece);
}

void ArrivingRun::cancel(std::string_view why) noexcept {
  if (!is_of_this_process() || cancelled_.exchange(true, std::memory_order_relaxed)) return;
  // First take all that is missing, so that the run cannot end before it is told why. Only this call sets kCancelled.
  bool is_missing = false;
  for (auto& piece : pieces_) {
    Piece was = Piece::kMissing;
    is_missing |= piece.compare_exchange_strong(was, Piece::kCancelled, std::memory_order_relaxed);
  }
  if (!is_missing) return;
  // Whoever runs a tile that one of these pieces made ready has synchronised on its counter, so it sees the failure.
  run_.fail(why);
  for (size_t piece = 0; piece < pieces_.size(); ++piece) {
    if (pieces_[piece].load(std::memory_order_relaxed) == Piece::kCancelled) run_.arrive(piece);
  }
}

EndedTiles::EndedTiles(std::span<const uint8_t> wanted) : wanted_(wanted.begin(), wanted.end()) {
  ended_.reserve(static_cast<size_t>(std::ranges::count_if(wanted_, [](uint8_t is) { return is != 0; })));
}

void EndedTiles::on_tile(const TileEvent& event) noexcept {
  if (event.has_failed || event.has_paused || !wanted_[static_cast<size_t>(event.tile)]) return;
  const std::lock_guard lock(mutex_);
  ended_.push_back(event.tile);
  changed_.notify_all();
}

void EndedTiles::close(const Failure& failure) noexcept {
  const std::lock_guard lock(mutex_);
  failure_ = failure;
  changed_.notify_all();
}

template <typename Is>
void EndedTiles::wait(std::unique_lock<std::mutex>& lock, std::optional<double> seconds, const Is& is) {
  // A clock that overflows waits no time at all, so none waits longer than a day for one call.
  constexpr double kLongest = 86400;
  if (!seconds) {
    changed_.wait(lock, is);
  } else {
    changed_.wait_for(lock, std::chrono::duration<double>(std::clamp(*seconds, 0.0, kLongest)), is);
  }
}

std::vector<int32_t> EndedTiles::take(std::optional<double> seconds) {
  std::unique_lock lock(mutex_);
  wait(lock, seconds, [&] { return !ended_.empty() || failure_; });
  std::vector<int32_t> result(ended_);
  ended_.clear();  // keeps its room
  return result;
}

std::optional<std::string> EndedTiles::error(std::optional<double> seconds) {
  std::unique_lock lock(mutex_);
  wait(lock, seconds, [&] { return failure_.has_value(); });
  if (!failure_) return std::nullopt;
  return failure_->text();
}

void EndedTiles::wait_for_end() noexcept {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failure_.has_value(); });
}

}  // namespace aspen
