#include "sampling/chooser.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <functional>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/choice.h"
#include "sampling/noise.h"

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

Chooser::Chooser(ProcessorSettings processing, const ChoiceSettings& settings, const Kernels* kernels)
    : vocab_(processing.vocab), settings_(settings), kernels_(kernels), processor_(std::move(processing), kernels), scratch_(vocab_) {
  if (settings.temperature != 0.0 && !(settings.temperature >= 1e-4 && settings.temperature <= 1e6))
    throw std::invalid_argument("a temperature out of range");
  const size_t blocks = static_cast<size_t>(vocab_ + kBlock - 1) / kBlock;
  tops_.resize(blocks);
  bounds_.resize(blocks);
  noise_.resize((blocks + 15) / 16 * 16);  // whole vectors of the counters that hold two
}

int Chooser::choose(const float* logits, const Text& text, const uint32_t* allowed) {
  if (const int wrong = look(processor_(logits, text, allowed))) return wrong;
  if (settings_.temperature == 0.0 || top_ == kInfinity) return first(top_);
  position_ = static_cast<uint32_t>(text.length());
  kernels_->lift(settings_.seed, position_, tops_.data(), static_cast<int>(tops_.size()), top_,
                 static_cast<float>(1.0 / settings_.temperature), noise_.data(), bounds_.data());
  const float least = std::max(least_, least_by_min_p());
  Place place = noisy_best(least, nullptr);
  while (!kept(place)) place = noisy_best(std::max(least, place.value), &place);
  return place.token;
}

// Takes a row to choose from.
int Chooser::look(const float* row) {
  row_ = row;
  if (kernels_->survey(row, vocab_, tops_.data())) return kNotANumber;
  top_ = *std::max_element(tops_.begin(), tops_.end());
  if (top_ == -kInfinity) return kNothingAllowed;
  if (settings_.temperature == 0.0) return 0;
  best_ = score(top_);
  rough_mass_ = -1.0;
  const bool filters = settings_.top_k > 0 && settings_.top_k < vocab_;
  least_ = filters ? kth_highest(*kernels_, row, vocab_, tops_, settings_.top_k, scratch_) : -kInfinity;
  return 0;
}

// The lowest id that has this value, a block's highest.
int Chooser::first(float value) const {
  const auto block = std::find(tops_.begin(), tops_.end(), value) - tops_.begin();
  return static_cast<int>(std::find(row_ + block * kBlock, row_ + vocab_, value) - row_);
}

// A bound, so that the search need not go far: min-p itself is asked of the token found.
float Chooser::least_by_min_p() const {
  if (!settings_.has_min_p) return -kInfinity;
  const double least = (best_ + settings_.log_min_p) * settings_.temperature;
  return float_below(least - 1e-12 * (std::fabs(least) + std::fabs(static_cast<double>(top_))));
}

// The token with the highest score + noise among those that are at least `least` and before `limit`, the lowest id of
// equals.
Chooser::Place Chooser::noisy_best(float least, const Place* limit) const {
  // Scores are taken relative to the best one, for the sake of the bounds' precision; sums are made as the rule makes
  // them. `slack` is more than the rounding of both.
  const double slack = 1e-3 + 1e-15 * std::fabs(best_);
  const double temperature = settings_.temperature;
  double bar = -std::numeric_limits<double>::infinity();
  Place found{-kInfinity, -1};
  const auto look_into = [&](size_t group) {
    const double lowest = least_noise(static_cast<uint32_t>(noise_[group]));
    const int who = holder(static_cast<uint32_t>(noise_[group] >> 32));
    // what is lower cannot reach the bar even with the group's most noise
    const double gap = (bar - best_ + natural_log(lowest) - slack) * temperature;
    const double reaching = top_ + gap - 1e-6 * std::fabs(gap);
    const float from = reaching > -FLT_MAX ? std::max(least, float_below(std::min<double>(reaching, FLT_MAX))) : least;
    const int begin = static_cast<int>(group) * kBlock, end = std::min(vocab_, begin + kBlock);
    for (int token = begin; token < end; token++) {
      const Place place{row_[token], token};
      if (!(place.value >= from) || (limit != nullptr && !place.before(*limit)) || place.value == -kInfinity) continue;
      const double noisy = score(place.value) + gumbel_noise(settings_.seed, position_, token, lowest, who);
      if (noisy > bar || (noisy == bar && token < found.token)) {
        bar = noisy;
        found = place;
      }
    }
  };
  size_t start = tops_.size();  // where the bar is likely to be set high at once
  for (size_t group = 0; group < tops_.size(); group++)
    if (tops_[group] >= least && (start == tops_.size() || bounds_[group] > bounds_[start])) start = group;
  look_into(start);
  for (size_t group = 0; group < tops_.size(); group++)
    if (tops_[group] >= least && !(bounds_[group] + slack < bar - best_) && group != start) look_into(group);
  return found;
}

// Whether the filters keep the token at this place.
bool Chooser::kept(const Place& place) {
  if (settings_.has_min_p && score(place.value) < best_ + settings_.log_min_p) return false;
  return settings_.top_p >= 1.0 || kept_by_top_p(place);
}

bool Chooser::kept_by_top_p(const Place& place) {
  if (place.value == top_ && place.token == first(top_)) return true;
  constexpr float kFarthest = 1e30f;  // beyond, differences of floats overflow
  if (std::fabs(top_) < kFarthest) {
    // what is 24 nats below the best has no mass that matters: less than its share of the error allowed for
    const float scale = static_cast<float>(kLog2E / settings_.temperature);
    const float far = float_below(top_ - 24.0 * settings_.temperature);
    if (rough_mass_ < 0.0) rough_mass_ = kernels_->tally(row_, vocab_, tops_.data(), std::max(least_, far), top_, scale);
    const auto mass_from = [&](float least) { return kernels_->tally(row_, vocab_, tops_.data(), std::max(least, far), top_, scale); };
    const double enough = settings_.top_p * rough_mass_, error = 2.0 * (kTallyError + 4e-11 * vocab_) * rough_mass_;
    if (mass_from(place.value) - exponential(score(place.value) - best_) < enough - error) return true;  // even with all its equals before it
    if (mass_from(std::nextafterf(place.value, kInfinity)) > enough + error) return false;               // even with none
  }
  const double mass = kernels_->exp_sum(row_, vocab_, least_, settings_.temperature, best_, nullptr);
  return exact_mass_before(place) < settings_.top_p * mass;
}

// The weights of the tokens before this one, added up in their order.
double Chooser::exact_mass_before(const Place& place) {
  const int count = sorted_from(place.value);
  double mass = 0.0;
  for (int i = 0; i < count && scratch_.ids[static_cast<size_t>(i)] != place.token; i++)
    mass += exponential(score(row_[scratch_.ids[static_cast<size_t>(i)]]) - best_);
  return mass;
}

// Fills scratch_.ids with the tokens of at least this value, in their order; returns how many.
int Chooser::sorted_from(float least) {
  const int count = kernels_->collect(row_, vocab_, tops_.data(), least, scratch_.ids.data());
  const auto in_order = [&](int32_t a, int32_t b) { return Place{row_[a], a}.before({row_[b], b}); };
  std::sort(scratch_.ids.begin(), scratch_.ids.begin() + count, in_order);
  return count;
}

int Chooser::probabilities(const float* logits, const Text& text, const uint32_t* allowed, double* out) {
  if (const int wrong = look(processor_(logits, text, allowed))) return wrong;
  if (settings_.temperature == 0.0 || top_ == kInfinity) {
    std::fill(out, out + vocab_, 0.0);
    out[first(top_)] = 1.0;
    return 0;
  }
  const double mass = kernels_->exp_sum(row_, vocab_, least_, settings_.temperature, best_, out);
  if (settings_.top_p < 1.0) cut_nucleus(settings_.top_p * mass, out);
  if (settings_.has_min_p)
    for (int i = 0; i < vocab_; i++)
      if (score(row_[i]) < best_ + settings_.log_min_p) out[i] = 0.0;
  const double sum = lane_sum(out, vocab_);
  for (int i = 0; i < vocab_; i++) out[i] /= sum;
  return 0;
}

// Leaves of the weights those of the first tokens in their order whose sum is enough.
void Chooser::cut_nucleus(double enough, double* weights) {
  constexpr int kFirstSorted = 256;  // almost always enough
  for (bool all = vocab_ <= kFirstSorted;; all = true) {
    const float least = all ? -kInfinity : kth_highest(*kernels_, row_, vocab_, tops_, kFirstSorted, scratch_);
    const int count = sorted_from(std::max(least, least_));
    double before = 0.0;
    int keep = 0;
    for (; keep < count && (keep == 0 || before < enough); keep++) before += weights[scratch_.ids[static_cast<size_t>(keep)]];
    if (keep == count && !all) continue;
    std::vector<double> kept(static_cast<size_t>(keep));
    for (size_t i = 0; i < kept.size(); i++) kept[i] = weights[scratch_.ids[i]];
    std::fill(weights, weights + vocab_, 0.0);
    for (size_t i = 0; i < kept.size(); i++) weights[scratch_.ids[i]] = kept[i];
    return;
  }
}

}  // namespace forerun
