#include "decoding/tree.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

std::vector<int32_t> below_root(int32_t first, const std::vector<int32_t>& values) {
  std::vector<int32_t> all{first};
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

std::vector<double> chances_below_root(const std::vector<float>& values) {
  std::vector<double> all{1.0};
  all.insert(all.end(), values.begin(), values.end());
  return all;
}

template <class T>
std::vector<T> at(const std::vector<T>& values, const std::vector<int32_t>& nodes) {
  std::vector<T> some;
  if (values.empty()) return some;
  some.reserve(nodes.size());
  for (const int32_t node : nodes) some.push_back(values[static_cast<size_t>(node)]);
  return some;
}

}  // namespace

DraftTree::DraftTree(std::vector<int32_t> tokens, std::vector<int32_t> parents, std::vector<std::string> origins,
                     std::vector<double> chances, Proposals proposals)
    : tokens_(std::move(tokens)), parents_(std::move(parents)), origins_(std::move(origins)), chances_(std::move(chances)),
      proposals_(std::move(proposals)) {
  if (tokens_.empty() || tokens_.size() != parents_.size()) throw std::invalid_argument("a tree needs as many parents as tokens, and a root");
  if (tokens_.size() > size_t(1) << 20) throw std::invalid_argument("a tree of too many nodes");
  for (int node = 0; node < size(); node++) {
    const int32_t parent = parents_[static_cast<size_t>(node)];
    if (node == 0 ? parent != -1 : parent < 0 || parent >= node)
      throw std::invalid_argument("a tree's root has parent -1 and every other node a parent before itself");
  }
  if (!origins_.empty() && origins_.size() != tokens_.size()) throw std::invalid_argument("a tree needs as many origins as nodes, or none");
  if (!chances_.empty() && chances_.size() != tokens_.size()) throw std::invalid_argument("a tree needs as many chances as nodes, or none");
  for (const double chance : chances_)
    if (!(chance >= 0.0) || std::isinf(chance)) throw std::invalid_argument("a tree's chances are numbers from 0 to 1");
}

DraftTree::DraftTree(int32_t root, const Draft& draft)
    : DraftTree(below_root(root, draft.tokens), below_root(-1, draft.parents), {}, chances_below_root(draft.chances)) {}

DraftTree DraftTree::chain(int32_t root, const std::vector<int32_t>& guesses) {
  std::vector<int32_t> parents(guesses.size() + 1);
  for (size_t node = 0; node < parents.size(); node++) parents[node] = static_cast<int32_t>(node) - 1;
  return {below_root(root, guesses), std::move(parents)};
}

const std::string& DraftTree::origin(int node) const {
  static const std::string nobody;
  return origins_.empty() ? nobody : origins_[static_cast<size_t>(node)];
}

std::vector<int32_t> DraftTree::depths() const {
  std::vector<int32_t> depths(tokens_.size(), 0);
  for (size_t node = 1; node < depths.size(); node++) depths[node] = depths[static_cast<size_t>(parents_[node])] + 1;
  return depths;
}

std::vector<std::vector<int32_t>> DraftTree::children() const {
  std::vector<std::vector<int32_t>> children(tokens_.size());
  for (size_t node = 1; node < children.size(); node++) children[static_cast<size_t>(parents_[node])].push_back(static_cast<int32_t>(node));
  return children;
}

std::vector<int32_t> DraftTree::path(int node) const {
  if (node < 0 || node >= size()) throw std::invalid_argument("no such node");
  std::vector<int32_t> path{node};
  while (path.back() != 0) path.push_back(parents_[static_cast<size_t>(path.back())]);
  std::reverse(path.begin(), path.end());
  return path;
}

int DraftTree::child(int node, int32_t token) const {
  for (int other = node + 1; other < size(); other++)
    if (parents_[static_cast<size_t>(other)] == node && tokens_[static_cast<size_t>(other)] == token) return other;
  return -1;
}

DraftTree DraftTree::only(const std::vector<int32_t>& nodes) const {
  std::vector<int32_t> place(tokens_.size(), -1), parents;
  for (const int32_t node : nodes) {
    const bool ascends = parents.empty() ? node == 0 : node > 0 && node < size();
    const int32_t parent = ascends ? parents_[static_cast<size_t>(node)] : -1;
    if (!ascends || (node > 0 && place[static_cast<size_t>(parent)] < 0) || place[static_cast<size_t>(node)] >= 0)
      throw std::invalid_argument("these nodes are no tree");
    place[static_cast<size_t>(node)] = static_cast<int32_t>(parents.size());
    parents.push_back(node == 0 ? -1 : place[static_cast<size_t>(parent)]);
  }
  Proposals drawn;
  for (const auto& [node, proposal] : proposals_)
    if (node >= 0 && node < size() && place[static_cast<size_t>(node)] >= 0) drawn.emplace(place[static_cast<size_t>(node)], proposal);
  return {at(tokens_, nodes), std::move(parents), at(origins_, nodes), at(chances_, nodes), std::move(drawn)};
}

std::optional<DraftTree> DraftTree::fit(int32_t root, int nodes, int depth, int vocab) const {
  const std::vector<int32_t> below = depths();
  std::vector<bool> fine(tokens_.size(), true);
  std::vector<int32_t> kept{0};
  for (size_t node = 1; node < fine.size(); node++) {
    fine[node] = tokens_[node] >= 0 && tokens_[node] < vocab && below[node] <= depth && fine[static_cast<size_t>(parents_[node])];
    if (fine[node] && static_cast<int64_t>(kept.size()) <= nodes) kept.push_back(static_cast<int32_t>(node));
  }
  if (kept.size() == tokens_.size() && tokens_[0] == root) return std::nullopt;
  DraftTree safe = only(kept);
  safe.tokens_[0] = root;
  return safe;
}

DraftTree DraftTree::named(const std::string& name) const {
  DraftTree tree = *this;
  if (origins_.empty()) tree.origins_.assign(tokens_.size(), name);
  if (chances_.empty())
    for (const int32_t depth : depths()) tree.chances_.push_back(std::ldexp(1.0, -depth));
  return tree;
}

DraftTree DraftTree::likely_first() const {
  if (chances_.empty() || !proposals_.empty()) return *this;
  const std::vector<std::vector<int32_t>> below = children();
  std::vector<double> rank = chances_;
  std::vector<int32_t> order, left{0};
  while (!left.empty()) {
    const int32_t node = left.back();
    left.pop_back();
    order.push_back(node);
    std::vector<int32_t> siblings = below[static_cast<size_t>(node)];
    for (const int32_t sibling : siblings) {  // of those that guess the same the first stays first
      const auto first = static_cast<size_t>(child(node, tokens_[static_cast<size_t>(sibling)]));
      rank[static_cast<size_t>(sibling)] = std::min(rank[static_cast<size_t>(sibling)], rank[first]);
    }
    std::stable_sort(siblings.begin(), siblings.end(),
                     [&](int32_t a, int32_t b) { return rank[static_cast<size_t>(a)] > rank[static_cast<size_t>(b)]; });
    left.insert(left.end(), siblings.rbegin(), siblings.rend());
  }
  return only(order);
}

DraftTree DraftTree::with(int node, const Draft& draft, const std::string& name) const {
  if (node < 0 || node >= size()) throw std::invalid_argument("no such node");
  DraftTree tree = *this;
  if (origins_.empty()) tree.origins_.assign(tokens_.size(), name);
  if (chances_.empty()) tree.chances_.assign(tokens_.size(), 1.0);
  const double reached = tree.chances_[static_cast<size_t>(node)];
  for (size_t i = 0; i < draft.tokens.size(); i++) {
    const int32_t parent = draft.parents[i];
    tree.tokens_.push_back(draft.tokens[i]);
    tree.parents_.push_back(parent == 0 ? node : parent + size() - 1);
    tree.origins_.push_back(name);
    tree.chances_.push_back(reached * static_cast<double>(draft.chances[i]));
  }
  return tree;
}

}  // namespace forerun
