#include "transfers.h"

#include <algorithm>
#include <cmath>

namespace aspen {
namespace {

int64_t later(int64_t time, int64_t by) { return std::min(time + std::min(by, kNever), kNever); }

}  // namespace

Transfers::Transfers(const VirtualGraph& graph, const VirtualMachine& machine) : graph_(graph), machine_(machine) {
  if (machine.num_memories() == 1) return;
  present_.assign(graph.num_tiles() * static_cast<size_t>(machine.num_memories()), kNever);
  lines_.resize(machine.links().size());
}

void Transfers::computed(uint32_t tile, int memory, int64_t then) {
  if (!present_.empty()) present_[index(tile, memory)] = then;
}

bool Transfers::is_there(uint32_t tile, int memory, int64_t now) const {
  return present_.empty() ||
         std::ranges::all_of(graph_.read_by(tile), [&](uint32_t read) { return present_[index(read, memory)] <= now; });
}

Copy Transfers::soonest(uint32_t tile, int memory, int64_t now, const std::vector<Line>& lines) const {
  Copy best{tile, -1, memory, now, kNever};
  for (int from = 0; from < machine_.num_memories(); ++from) {
    const size_t number = machine_.link_index(from, memory);
    const VirtualLink& link = machine_.links()[number];
    const Line& line = lines[number];
    const bool is_joined = line.asked_at == now && line.op == graph_.op_of(tile);
    const int64_t begin = std::max({now, present_[index(tile, from)], line.free_at});
    const double bytes_ns = static_cast<double>(graph_.bytes(tile)) * link.ns_per_byte;
    const int64_t lasts = bytes_ns < 1e18 ? static_cast<int64_t>(std::llround(bytes_ns)) : kNever;
    const int64_t end = later(later(begin, is_joined ? 0 : link.latency_ns), lasts);
    if (best.from < 0 || end < best.end) best = {tile, from, memory, begin, end};
  }
  return best;
}

void Transfers::occupy(const Copy& copy, int64_t now, std::vector<Line>& lines) const {
  lines[machine_.link_index(copy.from, copy.to)] = {copy.end, now, graph_.op_of(copy.tile)};
}

int64_t Transfers::arrival(uint32_t tile, int memory, int64_t now) const {
  int64_t arrival = now;
  if (present_.empty()) return arrival;
  tried_ = lines_;
  for (const uint32_t read : graph_.read_by(tile)) {
    int64_t then = present_[index(read, memory)];
    if (then == kNever) {
      const Copy copy = soonest(read, memory, now, tried_);
      occupy(copy, now, tried_);
      then = copy.end;
    }
    arrival = std::max(arrival, then);
  }
  return arrival;
}

int64_t Transfers::fetch(uint32_t tile, int memory, int64_t now) {
  int64_t arrival = now;
  if (present_.empty()) return arrival;
  for (const uint32_t read : graph_.read_by(tile)) {
    int64_t& then = present_[index(read, memory)];
    if (then == kNever) {
      const Copy copy = soonest(read, memory, now, lines_);
      occupy(copy, now, lines_);
      copies_.push_back(copy);
      then = copy.end;
    }
    arrival = std::max(arrival, then);
  }
  return arrival;
}

}  // namespace aspen
