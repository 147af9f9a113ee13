// What a drafter that takes time is worth, and how deep it is asked.
//
// Asking for one depth more takes seconds, which plain steps and the other drafters would turn into tokens at some price
// (tokens a second). It gives the guesses of that depth: tokens that the step emits more on average, less what their rows
// cost. Both are kept by depth, and by what the drafters asked before promise already, for where these are sure of much
// nothing is left to gain. A drafter is asked as deep as the sum of gains less costs grows. Where it does not pay it is asked
// when a hundredth of the time since covers it (less where it is unlikely to pay), and goes on for a few steps while it is
// right: so it is known when it would pay again.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "decoding/tree.h"

namespace forerun {

// One depth of a drafter's trees: tokens that its guesses are worth, and seconds that asking takes.
struct Level {
  double gain = 0.0, seconds = 0.0;
  int64_t seen = 0;
  void add(double new_gain, double new_seconds);
};

// Of one drafter, in this text and earlier ones.
class Account {
 public:
  // promising: whether it is likely to pay, before anything is known.
  explicit Account(bool promising);

  bool promising() const { return promising_; }
  const std::map<int, std::vector<Level>>& levels() const { return levels_; }  // by what others promise, by depth
  void save(double steps);  // so many plain steps' time has passed
  // The depth that is worth most, 0 if none is worth anything. promise: see promised(). price: tokens a second.
  int depth(int promise, double price, int most);
  // What asking so deep gave and took, by depth: as many of either, one at least.
  void add(int promise, const std::vector<double>& gains, const std::vector<double>& seconds);

  double nodes = 0.0;  // of its guesses that are verified where it pays, lately
  double saved;        // plain steps that may be spent on asking it where it does not pay

 private:
  int best_depth(int promise, double price, int most) const;

  bool promising_;
  std::map<int, std::vector<Level>> levels_;
  std::map<std::pair<int, int>, std::pair<double, int>> found_;  // at what price, what depth
};

// Decides, step by step, how deep one drafter is asked in one text.
class Pace {
 public:
  struct Asked {
    int nodes, depth;
  };

  // account: is kept. plain: seconds of a plain step.
  Pace(std::shared_ptr<Account> account, double plain);

  // Whether reading along is worth the while.
  bool hopeful() const;
  // How much of a budget the drafter is asked for beside a tree (or null), if for anything. price: tokens a second.
  std::optional<Asked> ask(double price, int nodes, int depth, const DraftTree* beside);
  // What came of asking. gains: tokens that its guesses are worth, by depth, as deep as its tree is. nodes: of its guesses
  // that are verified. seconds: that it took, all told.
  void gained(const std::vector<double>& gains, int nodes, double seconds);
  // A step took so long; `right`: the drafter was asked, and the text went on with one of its guesses.
  void passed(double price, double seconds, bool right);

 private:
  std::shared_ptr<Account> account_;
  double plain_;
  bool paying_ = true, right_ = false;
  int64_t steps_ = 0;  // in a row that it was asked; in the first it has to catch up with the text
  int promise_ = 0, depth_ = 0;
  double seconds_ = 0.0;
};

// How much a tree promises, in steps; 0 for none.
int promised(const DraftTree* tree);

}  // namespace forerun
