// Which tile's box is in which memory from when, and the links that carry copies, in simulated time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "virtual_graph.h"
#include "virtual_machine.h"

namespace aspen {

struct Copy {
  uint32_t tile;
  int from, to;  // memories
  int64_t begin, end;
};

// Each tile's box is written once, so it never has to be taken back: it is in a memory, or not yet. What the call is given is
// everywhere from the beginning.
class Transfers {
 public:
  Transfers(const VirtualGraph& graph, const VirtualMachine& machine);

  // A tile is computed in a memory, and its box there from `then` on.
  void computed(uint32_t tile, int memory, int64_t then);

  // The time at which all that a tile reads would be in a memory if missing copies were asked for now; not before now.
  int64_t arrival(uint32_t tile, int memory, int64_t now) const;

  // Asks for the missing copies. A copy of one more box of an op that is asked for at the same moment pays no second latency: it
  // is the same copy, of more rows.
  int64_t fetch(uint32_t tile, int memory, int64_t now);

  // Whether all that it reads is there.
  bool is_there(uint32_t tile, int memory, int64_t now) const;

  std::vector<Copy>& copies() { return copies_; }

 private:
  struct Line {
    int64_t free_at = 0;
    int64_t asked_at = -1;
    uint32_t op = 0;
  };

  size_t index(uint32_t tile, int memory) const {
    return size_t{tile} * static_cast<size_t>(machine_.num_memories()) + static_cast<size_t>(memory);
  }
  // The copy that brings a box soonest.
  Copy soonest(uint32_t tile, int memory, int64_t now, const std::vector<Line>& lines) const;
  void occupy(const Copy& copy, int64_t now, std::vector<Line>& lines) const;

  const VirtualGraph& graph_;
  const VirtualMachine& machine_;
  std::vector<int64_t> present_;  // of each tile and memory; empty where there is one memory, in which nothing is ever missing
  std::vector<Line> lines_;       // of each link
  mutable std::vector<Line> tried_;
  std::vector<Copy> copies_;
};

}  // namespace aspen
