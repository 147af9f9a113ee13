// The tokens of a text that a head's outputs lack, as outputs of their own.
//
// A head whose outputs are rows of its target's output layer can say any token of the target's, if it only takes the row.
// Of the rare ones a text says again what it has said: names, numbers, words of another language.
#pragma once
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "weights/packed.h"

namespace forerun {

// Where the rows come from.
struct TargetRows {
  PackedLinear from;  // the target's output layer, [vocab, hidden], without a bias
  Format format;      // how they are executed: as the head's own
  int most;           // tokens that a text adds to the head's at most, at least 1
};

class TextVocabulary {
 public:
  // rows: null where nothing can be added. own: the head's tokens.
  // Throws std::invalid_argument for rows that cannot be taken.
  TextVocabulary(std::shared_ptr<const TargetRows> rows, const std::vector<int32_t>& own);

  // Reads on in a text of which the beginning was read. Returns whether tokens() may be others than after the last call.
  // They are a function of the text alone: where there are more than may be, those that it had last.
  bool follow(const std::vector<int32_t>& text);
  // The text will go on from this length.
  void truncate(int length);

  const std::vector<int32_t>& tokens() const { return tokens_; }
  int tiles() const { return (static_cast<int>(tokens_.size()) + kTile - 1) / kTile; }
  // The output layer of tokens(), in their order; valid until the next call. Without tokens it has no tiles.
  Linear outputs();

 private:
  void see(int32_t token);
  void take(int tile);

  std::shared_ptr<const TargetRows> rows_;
  std::vector<bool> rare_;       // of each of the target's tokens: the head lacks it
  std::vector<int32_t> tokens_;
  std::vector<int> seen_;        // where in the text each was last
  std::unordered_map<int32_t, int> places_;  // of tokens
  int read_ = 0;                 // tokens of the text
  bool changed_ = false;         // tokens_ since `follow` told

  PackedLinear packed_;          // room for the most; empty before any is needed
  std::vector<int32_t> taken_;   // whose rows are in it, -1: no one's
};

}  // namespace forerun
