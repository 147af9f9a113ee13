// What a drafting head's logits say about the target's next token: sampling/ranking.py's CoupledRanker for heads, whose
// vocabulary may be a part of the target's. For the rejection rule candidates are the most probable, chosen and not drawn.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "decoding/tree.h"
#include "kernels/kernels.h"
#include "sampling/settings.h"

namespace forerun {

struct HeadGuess {
  int32_t token;  // of the target
  float chance;   // that the target says it
};

class Candidates {
 public:
  // tokens: [outputs] the target's token of each of the head's, or empty where they are the same.
  // Throws std::invalid_argument for tokens outside the target's vocabulary.
  Candidates(SamplingSettings settings, int outputs, std::vector<int32_t> tokens, const Kernels* kernels);

  // From now on rows have more columns: tokens of which the head's map has none, behind the head's outputs in whole tiles.
  // Throws std::invalid_argument without a map, and for tokens outside the vocabulary.
  void add(const std::vector<int32_t>& tokens);
  // Columns that are no token's, at the end of the head's last tile, are made such that they are never chosen.
  // logits: [rows][stride].
  void blank(float* logits, int rows, size_t stride) const;
  // Prepares for rows whose next token has this position in the text.
  void at(uint32_t position);
  // At most `count` candidates, the most promising first; none where the logits are no numbers. May be called by several
  // threads at once unless `alone`. text: what the row follows, the whole of it.
  std::vector<HeadGuess> best(const float* logits, const Text& text, int count) const;
  bool alone() const { return processor_ != nullptr; }

 private:
  // A row in the ids of its tokens.
  struct Row {
    const float* values;
    int n;
    const int32_t* tokens;  // null: the same
    int token(int i) const { return tokens == nullptr ? i : tokens[i]; }
  };
  Row processed(const float* logits, const Text& text) const;
  std::vector<int32_t> shortlist(const Row& row, const std::vector<float>& tops, int count) const;
  size_t kept(const Row& row, const std::vector<int32_t>& list, double mass) const;
  int holder_of(int group) const;
  void name(int column, bool named);
  double noise(int token) const;
  std::vector<HeadGuess> with_noise(const Row& row, const std::vector<int32_t>& list, bool open, int count) const;

  ChoiceSettings settings_;
  int vocab_, own_, outputs_;      // columns of a row: the head's own, and all
  std::vector<int32_t> tokens_;   // of each column, -1: none; empty where they are the same
  std::vector<int32_t> columns_;  // of each token, -1: none; empty likewise
  std::vector<uint64_t> members_;  // of each group of tokens, a bit for each that the head has; empty likewise
  const Kernels* kernels_;
  std::unique_ptr<Processor> processor_;  // null: logits stay as they are
  mutable std::vector<float> wide_;  // a row over the target's vocabulary

  // of the position
  uint32_t position_ = 0;
  std::vector<uint64_t> words_;  // of each group of tokens, as kernels' `lift` gives them
  std::vector<float> bounds_;    // above the most noise in it
  struct Holder {
    int32_t column, token;
    double noise;
  };
  std::vector<Holder> holders_;  // tokens of the head that have the highest noise of their group
};

}  // namespace forerun
