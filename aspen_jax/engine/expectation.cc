#include "expectation.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace aspen {

Expectation::Expectation(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds)
    : graph_(graph),
      machine_(machine),
      nanoseconds_(nanoseconds),
      lanes_(static_cast<size_t>(machine.num_lanes())),
      ends_(graph.num_tiles(), kUnknown),
      transfers_(graph, machine) {
  check_times(graph, machine, nanoseconds);
}

void Expectation::check(uint32_t tile, int resource) const {
  if (tile >= graph_.num_tiles() || resource < 0 || resource >= machine_.num_resources()) {
    throw std::invalid_argument("there is no tile " + std::to_string(tile) + " or no resource " + std::to_string(resource) +
                                "; " + std::to_string(graph_.num_tiles()) + " tiles and " +
                                std::to_string(machine_.num_resources()) + " resources are there");
  }
}

int64_t& Expectation::lane(int resource) {
  const auto first = lanes_.begin() + machine_.first_lane(resource);
  return *std::min_element(first, first + machine_.lanes(resource));
}

int64_t Expectation::ready(uint32_t tile, int64_t now) const {
  for (const uint32_t parent : graph_.parents_of(tile)) {
    if (!is_assigned(parent)) {
      throw std::invalid_argument("tile " + std::to_string(tile) + " waits for tile " + std::to_string(parent) +
                                  ", which is not assigned yet; assign tiles in an order that their arrows allow");
    }
    now = std::max(now, ends_[parent]);
  }
  return now;
}

int64_t Expectation::earliest_finish(uint32_t tile, int resource, int64_t now) const {
  check(tile, resource);
  return finish(tile, resource, ready(tile, now));
}

int64_t Expectation::finish(uint32_t tile, int resource, int64_t ready) const {
  const int64_t lasts = nanoseconds(tile, resource);
  if (lasts >= kNever) return kNever;
  const int64_t arrival = transfers_.arrival(tile, machine_.memory(resource), ready);
  return std::min(std::max(arrival, free_at(resource)) + lasts, kNever);
}

void Expectation::assign(uint32_t tile, int resource, int64_t now) {
  check(tile, resource);
  if (is_assigned(tile)) throw std::invalid_argument("tile " + std::to_string(tile) + " is assigned already");
  if (nanoseconds(tile, resource) >= kNever) {
    throw std::invalid_argument("resource " + std::to_string(resource) + " has no kernel for tile " + std::to_string(tile));
  }
  const int memory = machine_.memory(resource);
  const int64_t arrival = transfers_.fetch(tile, memory, ready(tile, now));
  int64_t& free = lane(resource);
  free = std::min(std::max(arrival, free) + nanoseconds(tile, resource), kNever);
  ends_[tile] = free;
  transfers_.computed(tile, memory, free);
}

void Expectation::earliest_finishes(uint32_t tile, int64_t now, std::span<int64_t> ends) const {
  check(tile, 0);
  const int64_t from = ready(tile, now);
  for (size_t resource = 0; resource < ends.size(); ++resource) ends[resource] = finish(tile, static_cast<int>(resource), from);
}

int Expectation::earliest_resource(uint32_t tile, int64_t now) const {
  check(tile, 0);
  const int64_t from = ready(tile, now);
  int best = -1;
  int64_t first = kNever;
  for (int resource = 0; resource < machine_.num_resources(); ++resource) {
    const int64_t end = finish(tile, resource, from);
    if (end < first) {
      first = end;
      best = resource;
    }
  }
  return best;
}

}  // namespace aspen
