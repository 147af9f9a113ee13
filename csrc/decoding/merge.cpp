#include "decoding/merge.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

std::vector<double> given_parent(const DraftTree& tree) {
  std::vector<double> given = tree.chances();
  for (size_t node = 1; node < given.size(); node++)
    given[node] = std::min(tree.chances()[node] / std::max(tree.chances()[static_cast<size_t>(tree.parents()[node])], 1e-9), 1.0);
  return given;
}

}  // namespace

int merge(const DraftTree& first, const DraftTree& second, int nodes, std::optional<DraftTree>& merged) {
  if (first.size() == 1 || second.size() == 1) return first.size() == 1 ? 2 : 1;
  if (first.chances().empty() || second.chances().empty()) return 1;
  if (!first.proposals().empty() || !second.proposals().empty()) {
    const double promised = std::accumulate(first.chances().begin() + 1, first.chances().end(), 0.0);
    return !first.proposals().empty() || promised >= kSure ? 1 : 2;
  }
  if (first.origins().empty() || second.origins().empty()) throw std::invalid_argument("merge: trees by nobody");
  std::vector<int32_t> tokens = first.tokens(), parents = first.parents(), place{0};
  std::vector<std::string> origins = first.origins();
  std::vector<double> given = given_parent(first);  // each node's chance where its parent is right
  const std::vector<double> also = given_parent(second);
  const size_t firsts = tokens.size();
  for (size_t node = 1; node < second.tokens().size(); node++) {
    const int32_t parent = place[static_cast<size_t>(second.parents()[node])], token = second.tokens()[node];
    size_t at = tokens.size();  // where the same guess is; of several the last of the first tree's, then what came first
    for (size_t other = tokens.size(); other-- > 1;)
      if (parents[other] == parent && tokens[other] == token) {
        at = other;
        break;
      }
    place.push_back(static_cast<int32_t>(at));
    if (at == tokens.size()) {
      tokens.push_back(token);
      parents.push_back(parent);
      origins.push_back(second.origins()[node]);
      given.push_back(also[node]);
    } else if (at < firsts) {
      if (also[node] > given[at]) origins[at] = second.origins()[node];
      given[at] = 1.0 - (1.0 - given[at]) * (1.0 - also[node]);
    }
  }
  std::vector<double> chances{1.0};
  for (size_t node = 1; node < tokens.size(); node++) chances.push_back(given[node] * chances[static_cast<size_t>(parents[node])]);
  merged.emplace(std::move(tokens), std::move(parents), std::move(origins), std::move(chances));
  if (merged->size() - 1 <= nodes) return 0;
  std::vector<int32_t> best = by_chance(merged->chances());
  best.resize(static_cast<size_t>(std::max(nodes, 0)));
  best.push_back(0);
  std::sort(best.begin(), best.end());
  merged = merged->only(best);
  return 0;
}

int likely_leaf(const DraftTree& tree) {
  const std::vector<double>& chances = tree.chances();
  int node = 0;
  for (int next = 0; next >= 0;) {
    node = next;
    next = -1;
    for (int other = node + 1; other < tree.size(); other++) {
      if (tree.parents()[static_cast<size_t>(other)] != node) continue;
      if (next < 0 || (!chances.empty() && chances[static_cast<size_t>(other)] > chances[static_cast<size_t>(next)])) next = other;
    }
  }
  return node;
}

std::vector<int32_t> by_chance(const std::vector<double>& chances) {
  std::vector<int32_t> order(chances.empty() ? 0 : chances.size() - 1);
  std::iota(order.begin(), order.end(), 1);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return chances[static_cast<size_t>(a)] > chances[static_cast<size_t>(b)]; });
  return order;
}

}  // namespace forerun
