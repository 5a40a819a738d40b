// What a scheduling policy decides. Everything else about the order of tiles follows from Algorithm 1.
#pragma once

#include <cstdint>

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

  // Whether a DSE walks on to a child at all (the paper's child cache); otherwise all go through the Ready Pool.
  bool keeps_child = true;
};

inline constexpr int kColumns = 63;

// The paper's: shallow tiles first, victims in a circle, the first ready child is kept.
extern const Policy kShallowFirst;

// To measure what that gives: without the child cache, and with tiles in the order in which they became ready.
extern const Policy kWithoutChildCache;
extern const Policy kFirstReadyFirst;

}  // namespace aspen
