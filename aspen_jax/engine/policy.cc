#include "policy.h"

#include <stdexcept>
#include <utility>

#include "traversal.h"

namespace aspen {
namespace {

// Scaled, so that graphs deeper than there are columns keep their order along the whole depth.
int shallow_first(int depth, int max_depth) { return static_cast<int>(int64_t{depth} * kColumns / (int64_t{max_depth} + 1)); }

int deep_first(int depth, int max_depth) { return kColumns - 1 - shallow_first(depth, max_depth); }

int same_column(int, int) { return 0; }

int next_in_circle(int self, int attempt, int rows) { return (self + 1 + attempt) % rows; }

bool has_more_children(const Traversal& traversal, uint32_t candidate, uint32_t kept) {
  return traversal.children_of(candidate).size() > traversal.children_of(kept).size();
}

constexpr std::pair<std::string_view, const Policy*> kNamed[] = {
    {"shallow first", &kShallowFirst},       {"child cache of 4", &kChildCacheOf4},
    {"child cache of 16", &kChildCacheOf16}, {"important first", &kImportantFirst},
    {"all through pool", &kAllThroughPool},  {"first ready first", &kFirstReadyFirst},
    {"single queue", &kSingleQueue},         {"deep first", &kDeepFirst},
};

}  // namespace

const Policy kShallowFirst = {shallow_first, next_in_circle, nullptr};
const Policy kChildCacheOf4 = {shallow_first, next_in_circle, nullptr, 4};
const Policy kChildCacheOf16 = {shallow_first, next_in_circle, nullptr, 16};
const Policy kImportantFirst = {shallow_first, next_in_circle, has_more_children};
const Policy kDeepFirst = {deep_first, next_in_circle, nullptr};
const Policy kAllThroughPool = {shallow_first, next_in_circle, nullptr, 0};
const Policy kExact = {shallow_first, next_in_circle, nullptr, 0, false, true};
const Policy kFirstReadyFirst = {same_column, next_in_circle, nullptr};
const Policy kSingleQueue = {same_column, next_in_circle, nullptr, 1, true};

const Policy* policy_named(std::string_view name) {
  for (const auto& [known, policy] : kNamed) {
    if (known == name) return policy;
  }
  return nullptr;
}

const Policy& policy_called(std::string_view name) {
  if (const Policy* const policy = policy_named(name)) return *policy;
  throw std::invalid_argument("there is no order '" + std::string(name) + "'; there are: " + policy_names());
}

std::string policy_names() {
  std::string names;
  for (const auto& [name, policy] : kNamed) names += (names.empty() ? "" : ", ") + std::string(name);
  return names;
}

}  // namespace aspen
