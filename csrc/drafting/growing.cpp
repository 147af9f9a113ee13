#include "drafting/growing.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace forerun {
namespace {

constexpr int kMostNodes = 128;
constexpr int kBeam = 16;      // nodes of a depth that are followed
constexpr int kChildren = 10;  // of a node, at most

}  // namespace

GrowingTree::GrowingTree(const std::vector<int32_t>& text, int nodes)
    : text_(text), nodes_(std::min(nodes, kMostNodes)), tokens_{text.back()}, parents_{-1}, depths_{0}, chances_{1.0f} {}

// They are better than the last of the best nodes so far: below any other there is none of the best.
std::vector<int32_t> GrowingTree::worth_following(int depth, float least_chance) const {
  std::vector<float> chances(chances_.begin() + 1, chances_.end());
  float bar = 0.0f;
  if (chances.size() >= static_cast<size_t>(nodes_)) {
    std::nth_element(chances.begin(), chances.begin() + nodes_ - 1, chances.end(), std::greater<float>());
    bar = chances[static_cast<size_t>(nodes_) - 1];
  }
  std::vector<int32_t> chosen;
  for (size_t node = 1; node < size(); node++)
    if (depths_[node] == depth && chances_[node] > bar && chances_[node] >= least_chance) chosen.push_back(static_cast<int32_t>(node));
  std::stable_sort(chosen.begin(), chosen.end(), [&](int a, int b) { return chances_[a] > chances_[b]; });
  if (chosen.size() > static_cast<size_t>(kBeam)) chosen.resize(kBeam);
  return chosen;
}

void GrowingTree::follow(const std::vector<int32_t>& level, Candidates& candidates, float* logits, size_t stride, Team& team) {
  const int rows = static_cast<int>(level.size()), depth = this->depth(level[0]);
  candidates.blank(logits, rows, stride);
  candidates.at(static_cast<uint32_t>(text_.size()) + static_cast<uint32_t>(depth));
  std::vector<std::vector<HeadGuess>> found(level.size());
  const auto rank = [&](int64_t begin, int64_t end) {
    std::vector<int32_t> path;
    for (size_t i = static_cast<size_t>(begin); i < static_cast<size_t>(end); i++)
      found[i] = candidates.best(logits + i * stride, text_at(level[i], path), std::min(nodes_, kChildren));
  };
  if (rows == 1 || candidates.alone()) rank(0, rows);
  else team.for_each(rows, 1, rank);
  for (size_t i = 0; i < level.size(); i++) {
    const float chance = chances_[static_cast<size_t>(level[i])];
    for (const HeadGuess& guess : found[i]) {
      tokens_.push_back(guess.token);
      parents_.push_back(level[i]);
      depths_.push_back(depth + 1);
      chances_.push_back(chance * guess.chance);
    }
  }
}

Draft GrowingTree::best() const {
  std::vector<int32_t> order(size() - 1), place(size(), 0);
  std::iota(order.begin(), order.end(), 1);
  const size_t keep = std::min(order.size(), static_cast<size_t>(nodes_));
  // a node is never more probable than its parent, and comes after it: the best are a tree
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return chances_[a] > chances_[b]; });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  Draft draft;
  for (size_t i = 0; i < keep; i++) {
    const size_t node = static_cast<size_t>(order[i]);
    place[node] = static_cast<int32_t>(i) + 1;
    draft.tokens.push_back(tokens_[node]);
    draft.parents.push_back(place[static_cast<size_t>(parents_[node])]);
    draft.chances.push_back(chances_[node]);
  }
  return draft;
}

// The text and the guesses down to a node.
Text GrowingTree::text_at(int32_t node, std::vector<int32_t>& path) const {
  path.clear();
  for (int32_t at = node; at > 0; at = parent(at)) path.push_back(token(at));
  std::reverse(path.begin(), path.end());
  return {text_.data(), static_cast<int>(text_.size()), path.data(), static_cast<int>(path.size())};
}

}  // namespace forerun
