#include "policy.h"

namespace aspen {
namespace {

// Scaled, so that graphs deeper than there are columns keep their order along the whole depth.
int shallow_first(int depth, int max_depth) { return static_cast<int>(int64_t{depth} * kColumns / (int64_t{max_depth} + 1)); }

int same_column(int, int) { return 0; }

int next_in_circle(int self, int attempt, int rows) { return (self + 1 + attempt) % rows; }

}  // namespace

const Policy kShallowFirst = {shallow_first, next_in_circle, nullptr};
const Policy kWithoutChildCache = {shallow_first, next_in_circle, nullptr, false};
const Policy kFirstReadyFirst = {same_column, next_in_circle, nullptr};

}  // namespace aspen
