#include "decoding/worth.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>

#include "decoding/merge.h"

namespace forerun {

std::vector<int32_t> worth_most(const Judged& judged, const Price& price) {
  const std::vector<double>& chances = judged.chances;
  std::vector<int32_t> order = by_chance(chances);
  const bool drawn = !judged.tree.proposals().empty();
  const auto chance = [&](size_t at) { return chances[static_cast<size_t>(order[at])]; };
  size_t best = 0;
  double value = kEdge, expected = 0.0;
  for (size_t k = 1; k <= order.size(); k++) {
    expected += chance(k - 1);
    const double gain = expected - price.of(static_cast<int>(k));
    // a cut within a depth would look at what was drawn
    const bool tied = drawn && k < order.size() && chance(k - 1) == chance(k);
    if (gain > value && !tied) best = k, value = gain;
  }
  order.resize(best);
  std::sort(order.begin(), order.end());
  return order;
}

double worth(const Judged& judged, const std::vector<int32_t>& kept, const Price& price) {
  if (kept.empty()) return 0.0;
  std::vector<double> chances;
  for (const int32_t node : kept) chances.push_back(judged.chances.at(static_cast<size_t>(node)));
  std::sort(chances.begin(), chances.end(), [](double a, double b) { return a > b; });
  return std::accumulate(chances.begin(), chances.end(), 0.0) - price.of(static_cast<int>(kept.size()));
}

Part part_of(const std::string& name, const Judged& judged, const std::vector<int32_t>& kept, const Price& price, double without) {
  const auto own = [&](size_t node) { return judged.tree.origins().empty() || judged.tree.origins()[node] == name; };
  const std::vector<int32_t> depths = judged.tree.depths();
  int reached = 0;
  for (size_t node = 1; node < depths.size(); node++)
    if (own(node)) reached = std::max(reached, depths[node]);
  Part part{std::vector<double>(static_cast<size_t>(reached), 0.0), 0};
  if (kept.empty()) return part;
  const double row = price.of(static_cast<int>(kept.size())) / static_cast<double>(kept.size());
  for (const int32_t node : kept) {
    const auto at = static_cast<size_t>(node);
    if (node < 1 || at >= depths.size()) throw std::invalid_argument("no such node");
    if (!own(at)) continue;
    part.nodes++;
    part.gains[static_cast<size_t>(depths[at] - 1)] += judged.chances[at] - row;
  }
  if (part.nodes == 0) return part;
  const double beyond = std::max(worth(judged, kept, price) - without, 0.0);
  const double share = beyond / std::max(std::accumulate(part.gains.begin(), part.gains.end(), 0.0), 1e-9);
  for (double& gain : part.gains) gain *= std::min(share, 1.0);
  return part;
}

}  // namespace forerun
