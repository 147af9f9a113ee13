// How likely guesses are: what their drafter says, set right by what became of guesses like them.
#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "decoding/tree.h"

namespace forerun {

// What guesses are counted together with: their drafter, and how sure it was in tenths. Where it has no opinion, minus how
// deep they are.
using Kind = std::pair<std::string, int>;

// A tree and, of each node, its kind; what is said of its chance where its parent is right; and the chance that the text
// goes through it, 1 at the root.
struct Judged {
  DraftTree tree;
  std::vector<Kind> kinds;
  std::vector<double> said, chances;
};

// What became of guesses, by kind.
class Records {
 public:
  // reliance: the part of what drafters promise that comes true, before anything is known of them.
  explicit Records(double reliance) : reliance_(reliance) {}

  double reliance() const { return reliance_; }
  void begin();  // another text begins
  // Of drawn candidates the chances depend on their depths alone: which are verified must not depend on what was drawn.
  Judged judge(const DraftTree& tree) const;
  // The text went on with `tokens` after the tree's root. Returns the nodes that guessed that, the root not among them.
  std::vector<int32_t> learn(const Judged& judged, const std::vector<int32_t>& tokens);

 private:
  // How often guesses of one kind were right, the last ones counting most.
  struct Record {
    double right = 0.0, seen = 0.0;
  };
  // What a drafter's guesses were said to be worth together, and what they were: guesses of all kinds tell at once whether
  // it is too sure of itself.
  struct Promise {
    double right, said;
  };
  void add(const Kind& kind, double said, bool right);

  double reliance_;
  std::map<Kind, Record> records_;
  std::map<std::string, Promise> promises_;
};

}  // namespace forerun
