// What a policy expects: when each tile would end on each resource, as things stand.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "transfers.h"
#include "virtual_graph.h"
#include "virtual_machine.h"
#include "virtual_time.h"

namespace aspen {

// Tiles are assigned one after the other, each after all that it waits for; each takes the lane that is free first, behind what
// was assigned to it before (list scheduling, as HEFT: Topcuoglu, Hariri and Wu, TPDS 2002, without insertion). What it reads is
// copied as soon as it is there.
class Expectation {
 public:
  // nanoseconds: [tiles][resources], kNever or more where a resource has no kernel for a tile. The arguments must outlive this.
  Expectation(const VirtualGraph& graph, const VirtualMachine& machine, std::span<const int64_t> nanoseconds);

  // kNever where the resource has no kernel. Throws std::invalid_argument for an unknown tile or resource, and where something
  // that the tile waits for is not yet assigned.
  int64_t earliest_finish(uint32_t tile, int resource, int64_t now = 0) const;

  // Writes the earliest finish on every resource into ends[resources].
  void earliest_finishes(uint32_t tile, int64_t now, std::span<int64_t> ends) const;

  // Puts a tile on a resource. Throws as above, and for a tile that is assigned already.
  void assign(uint32_t tile, int resource, int64_t now = 0);

  // The resource on which it ends first; the lowest of equals. -1 where none has a kernel.
  int earliest_resource(uint32_t tile, int64_t now = 0) const;

  const VirtualMachine& machine() const { return machine_; }
  bool is_assigned(uint32_t tile) const { return ends_[tile] != kUnknown; }

 private:
  static constexpr int64_t kUnknown = -1;

  // The time at which all that a tile waits for has ended.
  int64_t ready(uint32_t tile, int64_t now) const;
  int64_t finish(uint32_t tile, int resource, int64_t ready) const;
  int64_t nanoseconds(uint32_t tile, int resource) const {
    return nanoseconds_[size_t{tile} * static_cast<size_t>(machine_.num_resources()) + static_cast<size_t>(resource)];
  }
  // The lane of a resource that is free first.
  int64_t& lane(int resource);
  int64_t free_at(int resource) const { return const_cast<Expectation*>(this)->lane(resource); }
  void check(uint32_t tile, int resource) const;

  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  std::span<const int64_t> nanoseconds_;
  std::vector<int64_t> lanes_;  // when each is free
  std::vector<int64_t> ends_;   // of each tile
  Transfers transfers_;
};

}  // namespace aspen
