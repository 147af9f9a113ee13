#include "sampling/chooser.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "kernels/choice.h"
#include "sampling/arithmetic.h"
#include "sampling/rejection.h"

namespace forerun {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace

Chooser::Chooser(SamplingSettings settings, const Kernels* kernels)
    : vocab_(settings.processing.vocab),
      settings_(settings.choice),
      kernels_(kernels),
      processor_(std::move(settings.processing), kernels),
      search_(kernels, vocab_, settings_.temperature, settings_.seed),
      scratch_(vocab_) {
  if (settings_.temperature != 0.0 && !(settings_.temperature >= 1e-4 && settings_.temperature <= 1e6))
    throw std::invalid_argument("a temperature out of range");
  tops_.resize(static_cast<size_t>(vocab_ + kBlock - 1) / kBlock);
}

int Chooser::choose(const float* logits, const Text& text, const uint32_t* allowed) {
  if (const int wrong = look(processor_(logits, text, allowed))) return wrong;
  if (settings_.temperature == 0.0 || top_ == kInfinity) return first(top_);
  const float least = std::max(least_, least_by_min_p());
  search_.begin(row_, tops_.data(), top_, least, static_cast<uint32_t>(text.length()));
  Place place = search_.best(least, nullptr);
  while (!kept(place)) {
    const Place out = place;
    place = search_.best(std::max(least, out.value), &out);
  }
  return place.token;
}

int Chooser::rank(const float* logits, const Text& text, const uint32_t* allowed, size_t count, std::vector<Candidate>& out) {
  out.clear();
  if (const int wrong = look(processor_(logits, text, allowed))) return wrong;
  if (top_ == kInfinity) {
    out.push_back({first(top_), 1.0});
  } else if (settings_.temperature == 0.0) {
    const float least = kth_highest(*kernels_, row_, vocab_, tops_, std::min(kShortlist, vocab_), scratch_);
    const int found = std::min(kShortlist, sorted_from(std::max(least, -std::numeric_limits<float>::max())));
    for (int i = 0; i < found; i++) out.push_back({scratch_.ids[static_cast<size_t>(i)], row_[scratch_.ids[static_cast<size_t>(i)]]});
  } else {
    for (const Noisy& one : noisy_shortlist(static_cast<uint32_t>(text.length())))
      out.push_back({one.place.token, one.noisy * settings_.temperature});
  }
  if (top_ == kInfinity) return 0;
  const double best = out.front().chance;  // until here, what chances are made of
  double weights[kShortlist];
  for (size_t i = 0; i < out.size(); i++) weights[i] = exponential(out[i].chance - best);
  const double sum = lane_sum(weights, static_cast<int>(out.size()));
  for (size_t i = 0; i < out.size(); i++) out[i].chance = weights[i] / sum;
  if (out.size() > count) out.resize(count);
  return 0;
}

// The best tokens with noise, of those that the filters keep.
std::vector<Noisy> Chooser::noisy_shortlist(uint32_t position) {
  float least = std::max(least_, least_by_min_p());
  search_.begin(row_, tops_.data(), top_, least, position);
  std::vector<Noisy> few = search_.best_few(kShortlist, least, nullptr);
  while (true) {
    std::vector<Place> order;
    for (const Noisy& one : few) order.push_back(one.place);
    std::sort(order.begin(), order.end(), [](const Place& a, const Place& b) { return a.before(b); });
    const auto out = std::partition_point(order.begin(), order.end(), [&](const Place& place) { return kept(place); });
    if (out == order.end()) return few;
    least = std::max(least, out->value);  // what is not kept is the end of the order: look again at what is before it
    few = search_.best_few(kShortlist, least, &*out);
  }
}

// Takes a row to choose from.
int Chooser::look(const float* row) {
  row_ = row;
  top_ = kernels_->survey(row, vocab_, tops_.data());
  if (std::isnan(top_)) return kNotANumber;
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

// Whether the filters keep the token at this place.
bool Chooser::kept(const Place& place) {
  if (settings_.has_min_p && score(place.value) < best_ + settings_.log_min_p) return false;
  return settings_.top_p >= 1.0 || kept_by_top_p(place);
}

bool Chooser::kept_by_top_p(const Place& place) {
  if (place.value == top_ && place.token == first(top_)) return true;
  constexpr float kFarthest = 1e30f;  // beyond, differences of floats overflow
  if (std::fabs(top_) < kFarthest) {
    // what is 24 nats below the best has no mass that matters: 4e-11 each at most
    const float far = std::max(least_, float_below(top_ - 24.0 * settings_.temperature));
    const float scale = static_cast<float>(kLog2E / settings_.temperature);
    const auto masses_from = [&](float value) {
      return kernels_->tally(row_, vocab_, tops_.data(), rough_mass_ < 0.0 ? far : std::max(far, value), value, top_, scale);
    };
    const Masses masses = masses_from(place.value);
    if (rough_mass_ < 0.0) rough_mass_ = masses.all;
    const double enough = settings_.top_p * rough_mass_, error = 2.0 * (kTallyError + 4e-11 * vocab_) * rough_mass_;
    if (masses.from - exponential(score(place.value) - best_) < enough - error) return true;  // with all its equals before it
    if (masses_from(std::nextafterf(place.value, kInfinity)).from > enough + error) return false;  // with none
  }
  const double mass = kernels_->exp_sum(row_, vocab_, tops_.data(), least_, settings_.temperature, best_, nullptr);
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
  const double mass = kernels_->exp_sum(row_, vocab_, tops_.data(), least_, settings_.temperature, best_, out);
  if (settings_.top_p < 1.0) cut_nucleus(settings_.top_p * mass, out);
  if (settings_.has_min_p)
    for (int i = 0; i < vocab_; i++)
      if (out[i] != 0.0 && score(row_[i]) < best_ + settings_.log_min_p) out[i] = 0.0;
  const double sum = lane_sum(out, vocab_);
  for (size_t block = 0; block < tops_.size(); block++) {
    if (tops_[block] < least_) continue;
    const int begin = static_cast<int>(block) * kBlock, end = std::min(vocab_, begin + kBlock);
    for (int i = begin; i < end; i++) out[i] /= sum;
  }
  return 0;
}

int Chooser::choose_by_rejection(const float* logits, const Text& text, const uint32_t* allowed, const std::vector<int32_t>& candidates,
                                 const double* proposal) {
  left_.resize(static_cast<size_t>(vocab_));
  if (const int wrong = probabilities(logits, text, allowed, left_.data())) return wrong;
  return reject(left_, candidates, proposal, source_, settings_.seed, static_cast<uint32_t>(text.length()));
}

int Chooser::draw(const float* logits, const Text& text, const uint32_t* allowed, size_t count, uint32_t serial,
                  std::vector<int32_t>& out, double* proposal) {
  out.clear();
  if (const int wrong = probabilities(logits, text, allowed, proposal)) return wrong;
  left_.assign(proposal, proposal + vocab_);
  out = draw_few(left_, count, settings_.seed, static_cast<uint32_t>(text.length()), serial);
  return 0;
}

// Leaves of the weights those of the first tokens in their order whose sum is enough.
void Chooser::cut_nucleus(double enough, double* weights) {
  for (int size = 256;; size *= 16) {  // almost always few are enough
    const float first = size < vocab_ ? kth_highest(*kernels_, row_, vocab_, tops_, size, scratch_) : -kInfinity;
    const bool all = first <= least_;
    const int count = sorted_from(std::max(first, least_));
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
