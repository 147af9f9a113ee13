// Acceptance along a draft tree, as core/accept.py has it node by node: down the tree for as long as a child guessed what is
// chosen at its parent.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "decoding/tree.h"
#include "sampling/chooser.h"

namespace forerun {

enum class Rule { coupled, rejection };

struct Walk {
  std::vector<int32_t> path, tokens;  // accepted nodes, the root first, and what was chosen at each
  int checked = 0;                    // nodes of the path that had children; they come first
  int wrong = 0;                      // if not 0: nothing can be chosen at the root, and why (see Chooser); the rest is empty
};

// logits: of the tree's nodes, `stride` floats apart. history: the text before the root. Where nothing can be chosen below
// the root the walk ends before it. Throws invalid_argument for tokens outside the vocabulary.
Walk walk(Chooser& chooser, Rule rule, const DraftTree& tree, const float* logits, size_t stride, const int32_t* history, int length);

}  // namespace forerun
