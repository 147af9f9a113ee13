#include "sampling/search.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <limits>
#include <utility>

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

// What a search has found. `bar`: what a token's noisy score must reach to be taken.
class Best {
 public:
  double bar() const { return found_.noisy; }
  void take(const Noisy& one) {
    if (one.before(found_)) found_ = one;
  }
  const Noisy& found() const { return found_; }

 private:
  Noisy found_{{-kInfinity, std::numeric_limits<int>::max()}, -std::numeric_limits<double>::infinity()};
};

class Several {
 public:
  explicit Several(int count) : count_(static_cast<size_t>(count)) { found_.reserve(count_ + 1); }
  double bar() const { return found_.size() < count_ ? -std::numeric_limits<double>::infinity() : found_.front().noisy; }
  void take(const Noisy& one) {
    for (const Noisy& other : found_)
      if (other.place.token == one.place.token) return;  // groups are looked into more than once
    found_.push_back(one);
    std::push_heap(found_.begin(), found_.end(), first_before);
    if (found_.size() <= count_) return;
    std::pop_heap(found_.begin(), found_.end(), first_before);
    found_.pop_back();
  }
  std::vector<Noisy> sorted() {
    std::sort_heap(found_.begin(), found_.end(), first_before);
    return std::move(found_);
  }

 private:
  static bool first_before(const Noisy& a, const Noisy& b) { return a.before(b); }
  size_t count_;
  std::vector<Noisy> found_;  // a heap, the last in the order on top
};

}  // namespace

NoisySearch::NoisySearch(const Kernels* kernels, int vocab, double temperature, uint64_t seed)
    : kernels_(kernels), vocab_(vocab), temperature_(temperature), seed_(seed) {
  const size_t groups = static_cast<size_t>(vocab + kBlock - 1) / kBlock;
  noise_.resize((groups + 15) / 16 * 16);  // as `lift` wants
  bounds_.resize(groups);
  unused_.resize(groups / kBlock + 1);
  keys_.resize(groups);
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
  for (float& bound : bounds_) bound = std::max(bound, -FLT_MAX);  // -inf is none: huge logits or a low temperature overflow
}

Place NoisySearch::best(float least, const Place* limit) {
  Best found;
  // first where the bar is likely to be set high at once
  look(kernels_->survey(bounds_.data(), static_cast<int>(bounds_.size()), unused_.data()), least, limit, found);
  look(found.bar() - best_ - slack_, least, limit, found);
  return found.found().place;
}

std::vector<Noisy> NoisySearch::best_few(int count, float least, const Place* limit) {
  Several found(count);
  const int groups = static_cast<int>(bounds_.size());
  look(kernels_->kth_of(bounds_.data(), groups, std::min(count, groups), keys_.data()), least, limit, found);
  look(found.bar() - best_ - slack_, least, limit, found);
  return found.sorted();
}

// Looks into groups that may exceed the bound, and still may exceed the bar when their turn comes.
template <class Found>
void NoisySearch::look(double bound, float least, const Place* limit, Found& found) const {
  const int groups = static_cast<int>(bounds_.size()), chunks = (groups + kBlock - 1) / kBlock;
  for (int chunk = 0; chunk < chunks; chunk++) {
    const uint64_t bits = kernels_->reaching(bounds_.data(), groups, chunk, float_below(std::max<double>(bound, -FLT_MAX)));
    for_each_bit(bits, [&](int bit) {
      const int group = chunk * kBlock + bit;
      if (tops_[group] >= least && !(bounds_[group] < found.bar() - best_ - slack_)) look_into(group, least, limit, found);
    });
  }
}

template <class Found>
void NoisySearch::look_into(int group, float least, const Place* limit, Found& found) const {
  const double lowest = least_noise(static_cast<uint32_t>(noise_[static_cast<size_t>(group)])), lift = natural_log(lowest);
  const int who = holder(static_cast<uint32_t>(noise_[static_cast<size_t>(group)] >> 32)), begin = group * kBlock;
  float from = least;  // what is lower is out, or cannot reach the bar even with the group's most noise
  const auto raise = [&] {
    const double gap = (found.bar() - best_ + lift - slack_) * temperature_, reaching = top_ + gap - 1e-6 * std::fabs(gap);
    if (reaching > -FLT_MAX) from = std::max(least, float_below(std::min<double>(reaching, FLT_MAX)));
  };
  const auto try_token = [&](int token) {
    const Place place{row_[token], token};
    if (!(place.value >= from) || place.value == -kInfinity || (limit != nullptr && !place.before(*limit))) return;
    const double noisy = score(place.value) + gumbel_noise(seed_, position_, token, lowest, who);
    if (noisy < found.bar()) return;
    found.take({place, noisy});
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
