// Algorithm 1 (section 3.2): what follows a tile. Workers call it in real time, the virtual clock in simulated time.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "child_cache.h"
#include "ready_pool.h"
#include "traversal.h"

namespace aspen {

// The counter of a child when several DSEs walk.
inline bool is_last_parent_of_shared(uint32_t& parents_left) noexcept {
  const std::atomic_ref<uint32_t> counter(parents_left);
  // Each decrement releases what its tile wrote, and continues the release sequence of those before; whoever reads the last
  // value acquires from all of them. Reading 1 means that every other parent has been counted and nobody else will come, so the
  // last parent, which for many tiles is the only one, need not write.
  return counter.load(std::memory_order_acquire) == 1 || counter.fetch_sub(1, std::memory_order_acq_rel) == 1;
}

// Company of a DSE that walks in a single thread, without atomics.
struct Alone {
  static bool is_last_parent(uint32_t& parents_left) noexcept { return --parents_left == 0; }
};

// Counts a finished tile's children down, keeps one of those that became ready, or several where the policy has a child cache,
// and pushes the others. Returns the one to go on with, or kNoTile where the path ends. The company says when a child has become
// ready (`is_last_parent`), whether this DSE may go on with it (`may_keep`), and takes the others (`push`). Always inlined: a
// call costs two nanoseconds a tile.
template <typename Company>
[[gnu::always_inline]] inline uint32_t finished(Traversal& traversal, const Policy policy, uint32_t tile, ChildCache& cache,
                                                const Company& company) {
  uint32_t kept = kNoTile;
  Batch others;
  for (const int32_t id : traversal.children_of(tile)) {
    auto child = static_cast<uint32_t>(id);
    if (!company.is_last_parent(traversal.parents_left(child))) continue;
    if (policy.kept_children > 0 && company.may_keep(child)) [[likely]] {
      if (kept == kNoTile) {
        kept = child;
        continue;
      }
      if (policy.prefer != nullptr && policy.prefer(traversal, child, kept)) std::swap(child, kept);
      if (cache.size() < std::min(policy.kept_children - 1, ChildCache::kMost)) {
        cache.push(child);
        continue;
      }
    }
    others.add(&traversal.node(child));
  }
  if (others.size > 0) company.push(others);
  return kept == kNoTile ? cache.pop() : kept;
}

// Walks the path that begins at `head` to its end, or until another one goes first, or a tile is not done, which is what
// `execute` says: then the company takes what is left (`is_overtaken`, asked after every tile, and `push`). Returns how many
// tiles are done.
template <typename Company, typename Execute>
[[gnu::always_inline]] inline int64_t walk_path(Traversal& traversal, const Node* head, const Company& company,
                                                const Execute& execute) {
  const Policy policy = traversal.policy();
  int64_t walked = 0;
  ChildCache cache;
  for (uint32_t tile = traversal.tile_of(head); tile != kNoTile; tile = finished(traversal, policy, tile, cache, company)) {
    if ((walked > 0 && company.is_overtaken(traversal)) || !execute(tile)) [[unlikely]] {
      Batch rest;
      for (; tile != kNoTile; tile = cache.pop()) rest.add(&traversal.node(tile));
      company.push(rest);
      break;
    }
    ++walked;
  }
  return walked;
}

// Roots uniformly over the rows, neighbours together, as batches for `push(row, batch)`. It looks at neither the traversal nor
// the roots after the last push, with which they may be gone.
template <typename Push>
void spread_roots(Traversal& traversal, std::span<const int32_t> roots, size_t rows, size_t first_row, const Push& push) {
  const size_t num_roots = roots.size(), parts = std::min(rows, num_roots);
  size_t root = 0;
  for (size_t part = 0; part < parts; ++part) {
    Batch batch;
    for (; root < num_roots * (part + 1) / parts; ++root) batch.add(&traversal.node(static_cast<uint32_t>(roots[root])));
    push(static_cast<int>((first_row + part) % rows), batch);
  }
}

}  // namespace aspen
