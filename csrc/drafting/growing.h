// A tree of guesses while it grows: the dynamic trees of EAGLE-2 (Li et al., arXiv 2406.16858). Of all guesses so far the
// most probable ones are followed, depth after depth, and in the end the most probable of all are kept.
#pragma once
#include <cstdint>
#include <vector>

#include "drafting/candidates.h"
#include "runtime/threads.h"

namespace forerun {

// Node 0 is the root, the text's last token. A node comes after its parent, and is never more probable.
class GrowingTree {
 public:
  // Of at most `nodes` guesses in the end, 128 at most. The text must outlive the tree, unchanged.
  GrowingTree(const std::vector<int32_t>& text, int nodes);

  size_t size() const { return tokens_.size(); }
  int32_t token(int32_t node) const { return tokens_[static_cast<size_t>(node)]; }
  int32_t parent(int32_t node) const { return parents_[static_cast<size_t>(node)]; }
  int depth(int32_t node) const { return depths_[static_cast<size_t>(node)]; }

  // The nodes of this depth below which there can be one of the best, and that are no less likely than `least_chance`: the
  // most probable first, 16 at most.
  std::vector<int32_t> worth_following(int depth, float least_chance) const;
  // Adds the children of nodes of one depth, as their logits tell: [level's size][stride].
  void follow(const std::vector<int32_t>& level, Candidates& candidates, float* logits, size_t stride, Team& team);
  // The most probable nodes.
  Draft best() const;

 private:
  Text text_at(int32_t node, std::vector<int32_t>& path) const;

  const std::vector<int32_t>& text_;
  int nodes_;
  std::vector<int32_t> tokens_, parents_;
  std::vector<int> depths_;
  std::vector<float> chances_;
};

}  // namespace forerun
