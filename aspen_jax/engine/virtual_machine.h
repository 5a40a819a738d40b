// A machine in simulated time: resources with lanes, each in a memory, and links between memories.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace aspen {

// Later than this is never: sums of two do not overflow.
inline constexpr int64_t kNever = std::numeric_limits<int64_t>::max() / 2;

// The time of a copy is that of its bytes behind the latency; a link carries one copy at a time.
struct VirtualLink {
  int64_t latency_ns = kNever;
  double ns_per_byte = 0;
};

class VirtualMachine {
 public:
  // The lanes of each resource and its memory; the links [from][to], a row for each memory. Throws std::invalid_argument for no
  // resource, a resource without lanes or more than kMaxWorkers of them in all, an unknown memory or a negative time.
  VirtualMachine(std::vector<int> lanes, std::vector<int> memories, std::vector<VirtualLink> links);

  int num_resources() const { return static_cast<int>(lanes_.size()); }
  int num_lanes() const { return static_cast<int>(resources_.size()); }
  int num_memories() const { return num_memories_; }
  int lanes(int resource) const { return lanes_[static_cast<size_t>(resource)]; }
  // Lanes are numbered resource by resource.
  int first_lane(int resource) const { return first_lanes_[static_cast<size_t>(resource)]; }
  int resource(int lane) const { return resources_[static_cast<size_t>(lane)]; }
  int memory(int resource) const { return memories_[static_cast<size_t>(resource)]; }
  // The resource on which a policy places a tile. Throws std::invalid_argument where the machine has none of this number.
  int checked_place(uint32_t tile, int resource) const;
  size_t link_index(int from, int to) const { return static_cast<size_t>(from * num_memories_ + to); }
  const std::vector<VirtualLink>& links() const { return links_; }

 private:
  std::vector<int> lanes_, memories_, first_lanes_, resources_;
  std::vector<VirtualLink> links_;
  int num_memories_ = 0;
};

}  // namespace aspen
