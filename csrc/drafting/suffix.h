// Suffix automaton with counts, and drafts from it: what followed the longest endings of the text before.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "decoding/tree.h"

namespace forerun {

// The suffix automaton (Blumer et al. 1985) of one or several texts, grown token by token in constant amortised time. A
// state is a set of substrings that occur at the same places; its link is the longest of their endings that occurs
// elsewhere too. Each state knows how often it occurred and where it last ended.
class SuffixIndex {
 public:
  // A substring: `length` tokens of what leads to `state`. State 0 is the empty one.
  struct Match {
    int32_t state = 0;
    int32_t length = 0;
  };
  struct Edge {
    int32_t source, token, target, next;  // next: the edge of the same source made before, or -1
  };

  SuffixIndex();

  void extend(int32_t token);
  void end_text();                   // what is added next is another text
  int64_t tokens() const { return tokens_; }
  size_t bytes() const;              // of memory held

  Match longest() const;             // the longest ending of the text that occurred before its end
  Match shorter(Match match) const;  // the longest ending of a match that occurred at other places too
  Match follow(Match match, int32_t token) const;  // the longest ending of match + token that occurred
  int32_t target(int32_t state, int32_t token) const;  // where an edge leads, or -1
  int32_t first_edge(int32_t state) const { return states_[static_cast<size_t>(state)].edges; }
  const Edge& edge(int32_t index) const { return edges_[static_cast<size_t>(index)]; }
  int32_t count(int32_t state) const { return states_[static_cast<size_t>(state)].count; }
  int32_t length(int32_t state) const { return states_[static_cast<size_t>(state)].length; }
  int32_t end(int32_t state) const { return states_[static_cast<size_t>(state)].end; }  // tokens up to its last place
  int64_t age(int32_t state) const { return tokens_ - end(state); }

 private:
  struct State {
    int32_t length, link, count, end, edges;
  };

  int32_t add_state(int32_t length, int32_t link, int32_t count, int32_t end);
  void add_edge(int32_t source, int32_t token, int32_t target);
  int32_t split(int32_t state, int32_t token, int32_t child);
  size_t slot(int32_t state, int32_t token) const;
  void rehash(size_t slots);

  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> table_;  // open addressing: (source, token) -> edge
  int32_t last_ = 0, tokens_ = 0;
  bool fresh_ = false;          // the whole text has occurred only once
};

// What the drafter believes before it has seen how good its guesses are, and how fast it learns.
struct SuffixConstants {
  double doubt;         // prior chance of a match of n tokens: n / (n + doubt)
  double shorter;       // prior chance of the shorter match, when the longer was wrong, and of a detour
  double prior;         // observations that the priors count as
  double window;        // observations after which the older ones count half
  double recent, span;  // a count of age a weighs 1 + recent span / (span + a)
  double least_chance;  // nodes less likely are left out
};

// Drafts trees from a text's own index and, if given, from one of past texts, which it only reads.
//
// The chance that the next token is one that followed the longest match before is learned as texts are observed, by the
// length of the match; with the rest of the chance it is one that followed the next shorter match. Within a match the
// chance is divided by counts, recent ones counting more. A tree grows from its most probable node, as long as nodes
// with at least `least_chance` are left.
//
// A text often copies a passage but for one token (another name, number or ending). A match that such a token broke is
// kept as a detour: what comes next in the passage is a guess like any other, with a chance of its own that is learned.
// Inserted and dropped tokens are not followed: on the package's own prompts they are too rare to help.
class SuffixDrafter {
 public:
  // Throws invalid_argument for constants that are no numbers of their kind.
  SuffixDrafter(std::shared_ptr<const SuffixIndex> past, const SuffixConstants& constants);

  void observe(const int32_t* tokens, size_t count);
  void truncate(size_t length);
  // What may follow the text and then `prefix`.
  Draft propose(const int32_t* prefix, size_t prefix_length, int nodes, int depth);
  size_t length() const { return text_.size(); }
  int32_t last() const { return text_.empty() ? 0 : text_.back(); }  // token of the text
  size_t bytes() const;

 private:
  using Match = SuffixIndex::Match;
  struct Detour {
    int32_t at = -1;     // where in the text the passage goes on; -1: there is none
    int32_t agreed = 0;  // tokens that were as in the passage since the one that was not
  };
  struct Place {
    Match own, past;
    Detour detour;
  };
  struct Rate {
    double hits, tries;
  };
  struct Source {  // of guesses
    const SuffixIndex* index;  // null: the detour
    Match match;
    Rate* rate;
  };
  struct Guess {
    int32_t token;
    double chance;
  };

  Place here() const { return {index_.longest(), in_past_, detour_}; }
  std::vector<Source> sources(const Place& place);
  Place follow(const Place& place, int32_t token) const;
  Detour turn(const Place& place, int32_t token) const;
  double weight(const SuffixIndex& index, int32_t state) const;
  void learn(int32_t token);
  void guess(const Place& place, double chance, std::vector<Guess>& guesses);

  static constexpr int kBuckets = 10;
  static constexpr int kAgreed = 2;  // after so many tokens a detour is a match like others

  std::shared_ptr<const SuffixIndex> past_;
  SuffixConstants constants_;
  SuffixIndex index_;
  std::vector<int32_t> text_;
  Match in_past_;
  Detour detour_;
  Rate rates_[2][kBuckets], detours_[kAgreed + 1];
  bool drafted_ = false;  // since the last tokens observed: only what is written tells how good drafts are
};

}  // namespace forerun
