// Where the ready tiles of a run of the lab go: to the resource that a policy chooses, behind copies of what they read.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "algorithm1.h"
#include "ready_tiles.h"
#include "traversal.h"
#include "virtual_graph.h"
#include "virtual_machine.h"
#include "virtual_time.h"

namespace aspen {

// Lanes that share what is ready. Those without work are at `waiting`, which hears of each tile that comes.
template <typename Waiting>
struct Domain {
  Domain(const Policy& policy, int lane, int lanes, Traversal& traversal, std::span<const int32_t> levels)
      : ready(policy, lanes, traversal, levels), first_lane(lane), num_lanes(lanes) {}

  void push(int row, const Batch& batch) {
    ready.push(row, batch);
    waiting.wake(batch.size);
  }

  // Pushes a batch from outside of the lanes: the rows take turns.
  void push(const Batch& batch) {
    // Relaxed: tiles may lie in any row.
    const unsigned turn = next_row_.fetch_add(1, std::memory_order_relaxed);
    push(static_cast<int>(turn % static_cast<unsigned>(num_lanes)), batch);
  }

  ReadyTiles ready;
  const int first_lane, num_lanes;
  Waiting waiting;

 private:
  std::atomic<unsigned> next_row_{0};
};

// The traversal of a run of the lab. With `place` each resource is a domain. Without it all lanes are one, and a tile stays with
// the lane that made it ready.
//
// The Clock derives from this. It makes time pass, really or on paper, and is asked:
//   decide(tile, now)            the resource of a tile: what `asked` answers, and what is to be done where that throws
//   fetch(tile, memory, now)     whether all that a tile reads is in a memory. Where it is not: asks for copies, and calls
//                                `arrived` when they have come
//   is_there(tile, memory, now)  the same, but asks for nothing
template <typename Clock, typename Waiting>
class Placing : public Traversal {
 public:
  static constexpr int kNowhere = -1;  // no resource, or no lane of the run

  // All arguments must outlive the run.
  Placing(const VirtualGraph& graph, const VirtualMachine& machine, const Policy& policy, const PlaceTile& place)
      : Traversal(graph.tiles(), graph.children().data(), graph.depths().size()),
        graph_(graph),
        machine_(machine),
        place_(place),
        resources_(place ? graph.num_tiles() : 0, kNowhere) {
    restart(policy, graph.parents(), [&](size_t op) { return graph.depths()[op]; }, graph.max_depth());
    const int num_domains = place ? machine.num_resources() : 1;
    for (int i = 0; i < num_domains; ++i) {
      const int first_lane = place ? machine.first_lane(i) : 0, num_lanes = place ? machine.lanes(i) : machine.num_lanes();
      domains_.push_back(std::make_unique<Domain<Waiting>>(policy, first_lane, num_lanes, *this, graph.depths()));
    }
  }

  void push_roots() {
    if (place_) {
      Batch roots;
      for (const int32_t root : graph_.roots()) roots.add(&node(static_cast<uint32_t>(root)));
      admit(roots, kNowhere, 0);
    } else {
      Domain<Waiting>& all = *domains_[0];
      spread_roots(*this, graph_.roots(), static_cast<size_t>(all.num_lanes), 0,
                   [&](int row, const Batch& batch) { all.push(row, batch); });
    }
  }

  // Tiles that a lane has made ready and does not keep.
  void push(const Batch& batch, int lane, int64_t now) {
    if (place_) {
      admit(batch, lane, now);
    } else {
      domains_[0]->push(lane, batch);
    }
  }

  // Whether a lane may go on with a tile that it has made ready: it is the lane's resource's, and has all that it reads.
  bool may_keep(uint32_t tile, int lane, int64_t now) {
    if (!place_) return true;
    const int resource = resource_of(tile, now);
    return resource == machine_.resource(lane) && clock().is_there(tile, machine_.memory(resource), now);
  }

  // Tiles of which `fetch` said that something was missing.
  void arrived(std::span<const uint32_t> tiles) {
    Batch batch;
    for (const uint32_t tile : tiles) batch.add(&node(tile));
    enter(batch, kNowhere);
  }

 protected:
  ~Placing() = default;

  bool is_placed() const { return static_cast<bool>(place_); }
  Domain<Waiting>& domain_of(int lane) { return *domains_[is_placed() ? static_cast<size_t>(machine_.resource(lane)) : 0]; }

  // What the policy answers; throws what it throws, and where there is no such resource.
  int asked(uint32_t tile, int64_t now) const { return machine_.checked_place(tile, place_(tile, now)); }

  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  std::vector<std::unique_ptr<Domain<Waiting>>> domains_;

 private:
  Clock& clock() { return static_cast<Clock&>(*this); }

  // Decided once. Only whoever made a tile ready comes here.
  int resource_of(uint32_t tile, int64_t now) {
    int& resource = resources_[tile];
    if (resource == kNowhere) resource = clock().decide(tile, now);
    return resource;
  }

  // Tiles that have become ready go to their resources.
  void admit(const Batch& batch, int lane, int64_t now) {
    Batch complete;
    Node* next = batch.first;
    for (int i = 0; i < batch.size; ++i) {
      Node* const node = std::exchange(next, next->next);  // before the node goes into another queue
      const uint32_t tile = tile_of(node);
      if (clock().fetch(tile, machine_.memory(resource_of(tile, now)), now)) complete.add(node);
    }
    enter(complete, lane);
  }

  // Each into the row of the lane that made it ready, or into the next one of its resource where that was another's. Where the
  // order is exact, those of one resource enter at once: no lane takes up one of them before it sees the others.
  void enter(Batch batch, int lane) {
    const int own = lane == kNowhere ? kNowhere : machine_.resource(lane);
    while (batch.size > 0) {
      const int resource = policy().is_exact ? resources_[tile_of(batch.first)] : own;
      Batch together, others;
      Node* next = batch.first;
      for (int i = 0; i < batch.size; ++i) {
        Node* const node = std::exchange(next, next->next);
        if (resources_[tile_of(node)] == resource) {
          together.add(node);
        } else if (policy().is_exact) {
          others.add(node);
        } else {
          Batch alone;
          alone.add(node);
          domain_at(resources_[tile_of(node)]).push(alone);
        }
      }
      if (together.size > 0) {
        Domain<Waiting>& domain = domain_at(resource);
        resource == own ? domain.push(lane - domain.first_lane, together) : domain.push(together);
      }
      batch = others;
    }
  }

  Domain<Waiting>& domain_at(int resource) { return *domains_[static_cast<size_t>(resource)]; }

  const PlaceTile& place_;
  std::vector<int> resources_;  // of each tile that was placed
};

}  // namespace aspen
