// The coupled choice of a token, fused: the same token as sampling/rules.py's CoupledRule, to the last tie.
//
// What is exact there is decided here by bounds, and computed only where bounds leave it open:
//   noise    a token is given noise only if its score and its group's least noise could still beat the best so far;
//   filters  what top-k, top-p and min-p keep is the beginning of the order (higher score, lower id first). So the best
//            of *all* tokens with noise is found, and asked whether it is kept; if not, nothing after it in the order is,
//            and the search goes on among those before it;
//   top-p    asks whether the mass before a token is below a share of all mass: single precision tells, but for one case
//            in some ten thousand.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "sampling/kth.h"
#include "sampling/processor.h"
#include "sampling/search.h"
#include "sampling/settings.h"

namespace forerun {

// What a draft model would have the target say.
struct Candidate {
  int32_t token;
  double chance;
};
constexpr int kShortlist = 16;  // candidates that share all chance

class Chooser {
 public:
  static constexpr int kNotANumber = -1, kNothingAllowed = -2;

  Chooser(SamplingSettings settings, const Kernels* kernels);

  int vocab() const { return vocab_; }

  // The token that follows the text, or one of the constants above. allowed: as Processor has it.
  int choose(const float* logits, const Text& text, const uint32_t* allowed);

  // The first `count` of the kShortlist best tokens by score + noise (sampling/ranking.py's CoupledRanker), for logits of a
  // draft model. Returns what choose would on the same mistakes, else 0.
  int rank(const float* logits, const Text& text, const uint32_t* allowed, size_t count, std::vector<Candidate>& out);

  // The distribution that tokens have there: weights / their sum, a point mass at temperature 0. Returns what choose
  // would on the same mistakes, else 0.
  int probabilities(const float* logits, const Text& text, const uint32_t* allowed, double* out);

  // The token by sampling/rules.py's RejectionRule instead. candidates: ids of the vocabulary; proposal: [vocab], or null.
  int choose_by_rejection(const float* logits, const Text& text, const uint32_t* allowed, const std::vector<int32_t>& candidates,
                          const double* proposal);

  // At most `count` tokens drawn without replacement from the distribution that tokens have there, which goes to `proposal`,
  // [vocab] (sampling/ranking.py's DrawingRanker), for logits of a draft model. serial: of the draws in this text. Returns
  // what choose would on the same mistakes, else 0.
  int draw(const float* logits, const Text& text, const uint32_t* allowed, size_t count, uint32_t serial, std::vector<int32_t>& out,
           double* proposal);

 private:
  int look(const float* row);
  int first(float value) const;
  double score(float value) const { return static_cast<double>(value) / settings_.temperature; }
  float least_by_min_p() const;
  bool kept(const Place& place);
  std::vector<Noisy> noisy_shortlist(uint32_t position);
  bool kept_by_top_p(const Place& place);
  double exact_mass_before(const Place& place);
  int sorted_from(float least);
  void cut_nucleus(double enough, double* weights);

  int vocab_;
  ChoiceSettings settings_;
  const Kernels* kernels_;
  Processor processor_;

  NoisySearch search_;
  Scratch scratch_;
  std::vector<double> left_, source_;  // of the rejection rule

  // of the row being chosen from
  const float* row_ = nullptr;
  std::vector<float> tops_;
  float top_ = 0.0f;          // the highest value
  double best_ = 0.0;         // its score
  float least_ = 0.0f;        // what top-k keeps is at least this
  double rough_mass_ = -1.0;  // of what top-k keeps, in weights of the best; below 0: not yet known
};

}  // namespace forerun
