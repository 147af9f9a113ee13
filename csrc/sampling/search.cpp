#include "sampling/search.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>

#include "kernels/choice.h"
#include "sampling/kth.h"
#include "sampling/noise.h"

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Calls f with each index whose bit is set, the lowest first.
template <class F>
void for_each_bit(uint64_t bits, F f) {
  for (; bits != 0; bits &= bits - 1) f(__builtin_ctzll(bits));
}

}  // namespace

NoisySearch::NoisySearch(const Kernels* kernels, int vocab, double temperature, uint64_t seed)
    : kernels_(kernels), vocab_(vocab), temperature_(temperature), seed_(seed) {
  const size_t groups = static_cast<size_t>(vocab + kBlock - 1) / kBlock;
  noise_.resize((groups + 15) / 16 * 16);  // as `lift` wants
  bounds_.resize(groups);
  unused_.resize(groups / kBlock + 1);
}

void NoisySearch::begin(const float* row, const float* tops, float top, float least, uint32_t position) {
  row_ = row;
  tops_ = tops;
  top_ = top;
  position_ = position;
  best_ = score(top);
  slack_ = 1e-3 + 1e-15 * std::fabs(best_);
  kernels_->lift(seed_, position, tops, static_cast<int>(bounds_.size()), least, top, static_cast<float>(1.0 / temperature_),
                 noise_.data(), bounds_.data());
}

Place NoisySearch::best(float least, const Place* limit) {
  Found found{{-kInfinity, vocab_}, -std::numeric_limits<double>::infinity()};
  const int groups = static_cast<int>(bounds_.size()), chunks = (groups + kBlock - 1) / kBlock;
  const auto look = [&](double bound) {  // into groups that may exceed it, and still may when their turn comes
    for (int chunk = 0; chunk < chunks; chunk++) {
      const uint64_t bits = kernels_->reaching(bounds_.data(), groups, chunk, float_below(std::max<double>(bound, -FLT_MAX)));
      for_each_bit(bits, [&](int bit) {
        const int group = chunk * kBlock + bit;
        if (tops_[group] >= least && !(bounds_[group] < found.noisy - best_ - slack_)) look_into(group, least, limit, found);
      });
    }
  };
  look(kernels_->survey(bounds_.data(), groups, unused_.data()));  // where the bar is likely to be set high at once
  look(found.noisy - best_ - slack_);
  return found.place;
}

void NoisySearch::look_into(int group, float least, const Place* limit, Found& found) const {
  const double lowest = least_noise(static_cast<uint32_t>(noise_[static_cast<size_t>(group)])), lift = natural_log(lowest);
  const int who = holder(static_cast<uint32_t>(noise_[static_cast<size_t>(group)] >> 32)), begin = group * kBlock;
  float from = least;  // what is lower is out, or cannot reach the bar even with the group's most noise
  const auto raise = [&] {
    const double gap = (found.noisy - best_ + lift - slack_) * temperature_, reaching = top_ + gap - 1e-6 * std::fabs(gap);
    if (reaching > -FLT_MAX) from = std::max(least, float_below(std::min<double>(reaching, FLT_MAX)));
  };
  const auto try_token = [&](int token) {
    const Place place{row_[token], token};
    if (!(place.value >= from) || place.value == -kInfinity || (limit != nullptr && !place.before(*limit))) return;
    const double noisy = score(place.value) + gumbel_noise(seed_, position_, token, lowest, who);
    if (noisy < found.noisy || (noisy == found.noisy && token > found.place.token)) return;
    found = {place, noisy};
    raise();
  };
  const auto try_from = [&](float value) {
    for_each_bit(kernels_->reaching(row_, vocab_, group, value), [&](int bit) { try_token(begin + bit); });
  };
  raise();
  // first those that are likely to raise the bar
  if (begin + who < vocab_) try_token(begin + who);
  try_from(std::max(from, tops_[group]));
  try_from(from);
}

}  // namespace forerun
