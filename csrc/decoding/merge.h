// Several drafters' trees as one.
#pragma once
#include "decoding/tree.h"

namespace forerun {

// Accepted guesses that a tree must promise to be preferred to candidates that were drawn.
constexpr double kSure = 1.0;

// The nodes of both trees, at most the `nodes` most probable below the root. A node that both have is the one's that is
// surer of it, and wrong only where both are: they are taken to know different things. Both have chances and origins (see
// DraftTree::named).
//
// Drawn candidates are left as they are (others beside them would need a rule of their own), and dropped for a first tree
// that promises much. Returns which tree it is where it is one of the two: 1 or 2; else 0, and the tree in `merged`.
int merge(const DraftTree& first, const DraftTree& second, int nodes, std::optional<DraftTree>& merged);

// The leaf that a walk along the most probable children comes to.
int likely_leaf(const DraftTree& tree);

// The nodes but the root in the order of their chances, the highest first; of equals the earlier.
std::vector<int32_t> by_chance(const std::vector<double>& chances);

}  // namespace forerun
