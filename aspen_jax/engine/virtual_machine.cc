#include "virtual_machine.h"

#include <cmath>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime.h"

namespace aspen {

VirtualMachine::VirtualMachine(std::vector<int> lanes, std::vector<int> memories, std::vector<VirtualLink> links)
    : lanes_(std::move(lanes)), memories_(std::move(memories)), links_(std::move(links)) {
  if (lanes_.empty()) throw std::invalid_argument("a machine needs at least one resource");
  if (memories_.size() != lanes_.size()) throw std::invalid_argument("each resource of a machine needs a memory");
  while (static_cast<size_t>(num_memories_ * num_memories_) < links_.size()) ++num_memories_;
  if (num_memories_ == 0 || links_.size() != static_cast<size_t>(num_memories_ * num_memories_)) {
    throw std::invalid_argument("a machine needs a link for each pair of memories");
  }
  for (size_t resource = 0; resource < lanes_.size(); ++resource) {
    const std::string name = "resource " + std::to_string(resource);
    const int count = lanes_[resource], memory = memories_[resource];
    if (count < 1 || count > kMaxWorkers - num_lanes()) {
      throw std::invalid_argument(name + " has " + std::to_string(count) + " lanes; take 1 or more, and at most " +
                                  std::to_string(kMaxWorkers) + " in all");
    }
    if (memory < 0 || memory >= num_memories_) {
      throw std::invalid_argument(name + " computes in memory " + std::to_string(memory) + " of " +
                                  std::to_string(num_memories_));
    }
    first_lanes_.push_back(num_lanes());
    resources_.insert(resources_.end(), static_cast<size_t>(count), static_cast<int>(resource));
  }
  for (const VirtualLink& link : links_) {
    if (link.latency_ns < 0 || !(link.ns_per_byte >= 0) || std::isinf(link.ns_per_byte)) {
      throw std::invalid_argument("a link has a latency or a time a byte that is negative or no finite number");
    }
  }
}

int VirtualMachine::checked_place(uint32_t tile, int resource) const {
  if (resource >= 0 && resource < num_resources()) return resource;
  throw std::invalid_argument("tile " + std::to_string(tile) + " is placed on resource " + std::to_string(resource) + " of " +
                              std::to_string(num_resources()));
}

}  // namespace aspen
