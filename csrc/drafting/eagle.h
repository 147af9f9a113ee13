// EAGLE's drafting heads: a layer or a few that read the target's hidden states and guess its next tokens.
//
// Li et al., EAGLE (arXiv 2401.15077), EAGLE-2 (2406.16858) and EAGLE-3 (2503.01840). Row j of a head's sequence joins
// token j + 1 of the text with the target's features of token j: what it says is about token j + 2. Below what is known
// of the target, the head's own last state stands in for features.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/candidates.h"
#include "drafting/growing.h"
#include "drafting/text_vocabulary.h"
#include "model/cache.h"
#include "model/decoder.h"
#include "model/projector.h"

namespace forerun {

// From the target's features of a token to the head's state: state = fc(norm(features)).
struct Reduction {
  PackedLinear fc;           // [hidden, features]; empty: the state is the features
  std::vector<float> norm;   // [features], or empty
  int norm_groups = 1;       // the features are normed in so many equal parts
};

class EagleHead {
 public:
  // tokens: of each of the head's outputs, the target's token; empty where they are the same. rows: where those of a text
  // come from that the head lacks, or null.
  EagleHead(DecoderShape shape, DecoderWeights weights, Reduction reduction, std::vector<int32_t> tokens,
            std::shared_ptr<const TargetRows> rows, std::shared_ptr<Team> team, const Kernels* kernels);

  const DecoderShape& shape() const { return decoder_.shape(); }
  int features() const { return features_; }  // floats of a token's features
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::shared_ptr<const TargetRows>& rows() const { return rows_; }
  const Kernels* kernels() const { return &projector_.kernels(); }
  Team& team() const { return projector_.team(); }
  Decoder& decoder() { return decoder_; }

  // features: [rows][features()]. Returns [rows][hidden].
  std::vector<float> states(const float* features, int rows) const;

 private:
  Reduction reduction_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const TargetRows> rows_;
  Projector projector_;
  Decoder decoder_;
  int features_;
};

// Drafts for one text.
//
// The head's cache holds rows of the target's own features only: what a tree had staged is forgotten, and the accepted
// tokens are computed again with their true features.
class EagleDrafter {
 public:
  EagleDrafter(std::shared_ptr<EagleHead> head, Candidates candidates, KvType type, int capacity);

  void begin();
  // Tokens that follow, and features of the tokens before each: [count][features()]; or null, as for the first token of
  // all: then the head knows nothing of the text before them. Without `reads` nothing is computed of them until a
  // proposal is asked for, and then of the last kWindow only: what was before is lost to the head.
  void observe(const int32_t* tokens, const float* features, int count, bool reads = true);
  // Forgets tokens from `length` on.
  void truncate(int length);
  // The most probable tree of at most `nodes` guesses, `depth` deep at most; a guess of less than `least_chance` is not
  // followed. Empty when nothing is known of the last token.
  Draft propose(int nodes, int depth, float least_chance);

  int length() const { return static_cast<int>(text_.size()); }
  int32_t last() const { return text_.empty() ? 0 : text_.back(); }  // token of the text
  int computed() const { return cache_.length(); }
  int features() const { return head_->features(); }
  // Logits of the token that follows the text, as the last proposal had them, [outputs], then those of rare(); empty if
  // there are none.
  std::vector<float> logits() const;
  // Tokens of the text that the head lacks, and that the last proposal could say all the same.
  const std::vector<int32_t>& rare() const { return vocabulary_.tokens(); }

 private:
  size_t stride() const { return static_cast<size_t>(head_->decoder().logits_stride()) + static_cast<size_t>(vocabulary_.tiles()) * kTile; }
  int waiting() const { return static_cast<int>(pending_.size() / static_cast<size_t>(head_->features())); }
  void keep_last(int pairs);
  void compute();
  void compute_rows(int rows, bool last);
  void compute_level(const GrowingTree& tree, const std::vector<int32_t>& level);

  std::shared_ptr<EagleHead> head_;
  Candidates candidates_;
  TextVocabulary vocabulary_;
  Cache cache_;
  std::vector<int32_t> text_;
  std::vector<float> pending_;  // features of the pairs that are not computed yet
  bool reads_ = true;
  std::vector<float> state_, logits_;  // of the text's last pair
  bool known_ = false;                 // they are
  int start_ = 0;                      // the token that the cache's first row has features of
  // of a tree's nodes; arrays are kept, for fresh pages are slow
  std::vector<int32_t> rows_;         // of the stage, -1: not computed
  std::vector<float> level_logits_;   // of the last level, in its order
  std::vector<float> staged_states_;  // the head's last states, of the stage's rows
};

}  // namespace forerun
