// The tokens with the highest scores + noise of a row, found with noise for a few tokens only.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"

namespace forerun {

// A place in the order of tokens; what is before it has a higher value, or the same and a lower id.
struct Place {
  float value;
  int token;
  bool before(const Place& other) const { return value > other.value || (value == other.value && token < other.token); }
};

struct Noisy {
  Place place;
  double noisy;  // its score + noise
  bool before(const Noisy& other) const { return noisy > other.noisy || (noisy == other.noisy && place.token < other.place.token); }
};

class NoisySearch {
 public:
  NoisySearch(const Kernels* kernels, int vocab, double temperature, uint64_t seed);

  // Takes a row whose highest value `top` is finite, and what `survey` says of it. Values below `least` are out.
  void begin(const float* row, const float* tops, float top, float least, uint32_t position);

  // The best of values that are at least `least` (which has not fallen since begin) and before `limit`, if there is one;
  // the lowest id of equals. There must be such a value.
  Place best(float least, const Place* limit);

  // As best, the best `count` or as many as there are, in their order. count >= 1.
  std::vector<Noisy> best_few(int count, float least, const Place* limit);

 private:
  template <class Found>
  void look(double bound, float least, const Place* limit, Found& found) const;
  template <class Found>
  void look_into(int group, float least, const Place* limit, Found& found) const;
  double score(float value) const { return static_cast<double>(value) / temperature_; }

  const Kernels* kernels_;
  int vocab_;
  double temperature_;
  uint64_t seed_;
  std::vector<uint64_t> noise_;  // of each group, its two words
  std::vector<float> bounds_;    // above the best score, what no token of the group exceeds
  std::vector<float> unused_;
  std::vector<int32_t> keys_;

  const float *row_ = nullptr, *tops_ = nullptr;
  uint32_t position_ = 0;
  float top_ = 0.0f;
  double best_ = 0.0;   // its score
  double slack_ = 0.0;  // more than the rounding of scores, sums and bounds
};

}  // namespace forerun
