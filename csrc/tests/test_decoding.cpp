// Draft trees and what is decided about them, over random trees (for the sanitizers too): trees stay trees, what is kept was
// there, and curves, records and accounts stay within their bounds.
#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include "check.h"
#include "decoding/account.h"
#include "decoding/curve.h"
#include "decoding/merge.h"
#include "decoding/records.h"
#include "decoding/tree.h"
#include "decoding/worth.h"

using namespace forerun;

namespace {

Checks check;
std::mt19937 random_bits(7);

int below(int bound) { return static_cast<int>(random_bits() % static_cast<unsigned>(bound)); }

DraftTree random_tree(const std::string& name, int most) {
  const int n = 1 + below(most);
  std::vector<int32_t> tokens{0}, parents{-1};
  std::vector<double> chances{1.0};
  for (int node = 1; node < n; node++) {
    parents.push_back(below(node));
    tokens.push_back(below(4));
    chances.push_back(chances[static_cast<size_t>(parents.back())] * (below(9) + 1) / 10.0);
  }
  return {tokens, parents, std::vector<std::string>(static_cast<size_t>(n), name), chances};
}

using Paths = std::set<std::vector<int32_t>>;

Paths paths(const DraftTree& tree) {
  Paths all;
  for (int node = 0; node < tree.size(); node++) {
    std::vector<int32_t> tokens;
    for (const int32_t at : tree.path(node)) tokens.push_back(tree.tokens()[static_cast<size_t>(at)]);
    all.insert(tokens);
  }
  return all;
}

void of_trees() {
  const DraftTree first = random_tree("a", 12), second = random_tree("b", 12);
  const Paths had = paths(first), others = paths(second);
  check(paths(first.likely_first()) == had, "another order has other paths");
  const int nodes = below(20);
  std::optional<DraftTree> merged;
  const int which = merge(first, second, nodes, merged);
  const DraftTree& both = which == 1 ? first : which == 2 ? second : *merged;
  for (const auto& path : paths(both)) check(had.count(path) + others.count(path) > 0, "a path came from nowhere");
  check(which != 0 || both.size() <= nodes + 1, "merged trees are too large");
  const int leaf = likely_leaf(both);
  check(both.children()[static_cast<size_t>(leaf)].empty(), "a likely leaf has children");
  const std::optional<DraftTree> safe = both.fit(9, nodes, 2, 3);
  if (safe) {
    check(safe->size() <= nodes + 1 && safe->tokens()[0] == 9, "a tree does not fit");
    for (const int32_t depth : safe->depths()) check(depth <= 2, "a tree is too deep");
  }
  Draft draft{{1, 2, 3}, {0, 1, 0}, {0.5f, 0.25f, 0.125f}};
  const DraftTree longer = both.with(leaf, draft, "c");
  check(longer.size() == both.size() + 3 && longer.path(both.size() + 1).size() == both.path(leaf).size() + 2, "a draft is not where it belongs");
}

void of_texts() {
  CostCurve curve({{1, 1.0}, {4, 1.0 + below(10) / 10.0}, {16, 2.0 + below(30)}}, 17);
  Records records(below(2) ? 1.0 : 0.4);
  const auto account = std::make_shared<Account>(below(2) == 1);
  for (int text = 0; text < 3; text++) {
    records.begin();
    Pace pace(account, curve(1));
    for (int step = 0; step < 60; step++) {
      const double price = 0.5 + below(30) / 10.0;
      const DraftTree beside = random_tree("a", 6), own = random_tree("b", 12);
      const std::optional<Pace::Asked> asked = pace.ask(price, 16, 16, below(2) ? &beside : nullptr);
      if (asked) check(asked->nodes >= 1 && asked->nodes <= 16 && asked->depth >= 1 && asked->depth <= 16, "a drafter is asked for nothing");
      std::optional<DraftTree> merged;
      const int which = asked ? merge(beside, own, 16, merged) : 1;
      const Judged judged = records.judge(which == 1 ? beside : which == 2 ? own : *merged);
      for (const double chance : judged.chances) check(chance >= 0.0 && chance <= 1.0, "a chance is none");
      const std::vector<int32_t> kept = worth_most(judged, {curve, price});
      for (const int32_t node : kept) {
        const int32_t parent = judged.tree.parents()[static_cast<size_t>(node)];
        // an equally likely parent comes before its child
        check(parent == 0 || std::binary_search(kept.begin(), kept.end(), parent) ||
                  judged.chances[static_cast<size_t>(parent)] < judged.chances[static_cast<size_t>(node)],
              "a node is kept without its parent");
      }
      const Part part = part_of("b", judged, kept, {curve, price}, below(3) / 2.0);
      check(part.nodes <= static_cast<int>(kept.size()), "a part is more than the whole");
      if (asked) pace.gained(part.gains, part.nodes, below(100) / 50.0);
      std::vector<int32_t> tokens;
      for (int i = 0; i <= below(4); i++) tokens.push_back(below(4));
      const std::vector<int32_t> right = records.learn(judged, tokens);
      check(right.size() <= tokens.size(), "more was right than there is");
      pace.passed(price, curve(1), !right.empty());
      curve.saw(1 + below(20), below(200) / 50.0);
      for (int n = 1; n < 17; n++) check(curve(n) >= curve(1) && std::isfinite(curve(n)), "a curve falls");
    }
    check(account->saved <= 2.5, "too much is saved");
  }
}

void refusals() {
  using Error = std::invalid_argument;
  check.refuses<Error>("parents", [] { DraftTree({1, 2}, {-1}); });
  check.refuses<Error>("root", [] { DraftTree({1, 2}, {0, 0}); });
  check.refuses<Error>("parent before", [] { DraftTree({1, 2}, {-1, 1}); });
  check.refuses<Error>("chances", [] { DraftTree({1, 2}, {-1, 0}, {}, {1.0, std::nan("")}); });
  check.refuses<Error>("no tree", [] { DraftTree({1, 2, 3}, {-1, 0, 1}).only({0, 2}); });
  check.refuses<Error>("no such node", [] { DraftTree({1, 2}, {-1, 0}).path(2); });
  check.refuses<Error>("cost curve", [] { CostCurve({{2, 1.0}}); });
  check.refuses<Error>("cost curve", [] { CostCurve({{1, 0.0}}); });
  check.refuses<Error>("pace", [] { Pace(nullptr, 1.0); });
}

}  // namespace

int main() {
  for (int i = 0; i < 2000; i++) of_trees();
  for (int i = 0; i < 50; i++) of_texts();
  refusals();
  return check.finish();
}
