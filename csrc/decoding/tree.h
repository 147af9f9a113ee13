// Draft trees. A chain is a tree with one branch, plain decoding a tree with only a root.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace forerun {

// Guesses below some node. Guess i is node i + 1; parents: 0 is the node that all are below.
struct Draft {
  std::vector<int32_t> tokens, parents;
  std::vector<float> chances;  // that the text goes through the guess, where it comes to that node
};

// The distribution over the vocabulary that a node's children were drawn from.
struct Distribution {
  std::shared_ptr<const double> shares;
  size_t size;
};

// Guesses for what follows the last emitted token, which is node 0, the root. Node i > 0 guesses the token after its
// parent, and parents come before their children. Siblings may repeat a token: the first wins.
class DraftTree {
 public:
  using Proposals = std::map<int32_t, Distribution>;

  // origins: who drafted each node, or empty. chances: that the text goes through each node, 1 at the root, as its drafter
  // sees it; or empty. Throws invalid_argument if that is no such tree.
  DraftTree(std::vector<int32_t> tokens, std::vector<int32_t> parents, std::vector<std::string> origins = {},
            std::vector<double> chances = {}, Proposals proposals = {});
  DraftTree(int32_t root, const Draft& draft);  // with chances
  static DraftTree chain(int32_t root, const std::vector<int32_t>& guesses);

  int size() const { return static_cast<int>(tokens_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::vector<int32_t>& parents() const { return parents_; }
  const std::vector<std::string>& origins() const { return origins_; }
  const std::vector<double>& chances() const { return chances_; }
  const Proposals& proposals() const { return proposals_; }
  const std::string& origin(int node) const;  // "" where there are no origins

  std::vector<int32_t> depths() const;                  // steps from the root
  std::vector<std::vector<int32_t>> children() const;   // in the order of their indices
  std::vector<int32_t> path(int node) const;            // from the root, both included
  int child(int node, int32_t token) const;             // the first child that guesses this, or -1

  // The tree of these nodes in this order: the root is the first, and each comes after its parent.
  DraftTree only(const std::vector<int32_t>& nodes) const;
  // This tree made safe to verify: `root` is its root; nodes below `depth`, tokens outside the vocabulary, what is under
  // either, and whatever then exceeds `nodes` (the root not counted) are gone. Nothing if all of it is fine as it is.
  std::optional<DraftTree> fit(int32_t root, int nodes, int depth, int vocab) const;
  // With origins and chances where there were none: an unknown chance halves with each depth.
  DraftTree named(const std::string& name) const;
  // The same nodes in an order in which the likeliest child and what is below it come first: the path that is accepted is
  // then mostly a beginning, which a cache keeps without moving anything. Drawn candidates stay as they are.
  DraftTree likely_first() const;
  // With a draft below a node, by whoever is named.
  DraftTree with(int node, const Draft& draft, const std::string& name) const;

 private:
  std::vector<int32_t> tokens_, parents_;
  std::vector<std::string> origins_;
  std::vector<double> chances_;
  Proposals proposals_;
};

}  // namespace forerun
