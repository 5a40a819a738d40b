// What a scheduling policy decides. Everything else about the order of tiles follows from Algorithm 1.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aspen {

class Traversal;

// Functions of static lifetime without state: they are called by all DSEs at once.
struct Policy {
  // H of the Ready Pool: the column of a tile of this depth. A DSE pops lower columns first. Clamped to [0, kColumns).
  int (*column)(int depth, int max_depth);

  // The row to try at the given attempt (0 .. rows - 2) of a DSE whose own row is empty. Must visit each other row once.
  int (*victim)(int self, int attempt, int rows);

  // Whether a child that became ready should be walked to instead of the one kept so far. Null: the first one is kept.
  bool (*prefer)(const Traversal& traversal, uint32_t candidate, uint32_t kept);

  // How many of the children that become ready a DSE keeps to itself. 1 is Algorithm 1: the one that it goes on with. With more
  // it has a child cache (child_cache.h). With 0 all children go through the Ready Pool.
  int kept_children = 1;

  // All DSEs push to one row and pop from it, in place of a row each.
  bool has_one_row = false;

  // Ready tiles wait in one heap, by depth and then by number, in place of rows and columns; for the lab. The lanes of a
  // resource share it, or all lanes where tiles are not placed.
  bool is_exact = false;

  int row_of(int self) const { return has_one_row ? 0 : self; }
};

inline constexpr int kColumns = 63;

// The paper's: shallow tiles first, victims in a circle, the first ready child is kept.
extern const Policy kShallowFirst;

// The optimizations that the paper leaves for later (section 3.2): a child cache of so many, and tiles first whose end counts
// down the most children, as those of pools and strided convolutions.
extern const Policy kChildCacheOf4;
extern const Policy kChildCacheOf16;
extern const Policy kImportantFirst;

// Deep tiles first, so that the first results come early: for runs whose results are sent on as they come.
extern const Policy kDeepFirst;

// The lowest depth first, and no child is kept; for the lab. The workers of a process would take it as all through the pool.
extern const Policy kExact;

// Policies that show by comparison what the paper's gives: all children through the Ready Pool, tiles in the order in which
// they became ready, and a single queue for all.
extern const Policy kAllThroughPool;
extern const Policy kFirstReadyFirst;
extern const Policy kSingleQueue;

// The policy of a name in the scheduling lab; null if there is none.
const Policy* policy_named(std::string_view name);
// The policy of a name; throws std::invalid_argument, with all names, if there is none.
const Policy& policy_called(std::string_view name);
// All of these names, for messages.
std::string policy_names();

}  // namespace aspen
