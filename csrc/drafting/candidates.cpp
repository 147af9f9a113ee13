#include "drafting/candidates.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

#include "sampling/noise.h"

namespace forerun {
namespace {

constexpr int kSharers = 16;    // candidates that share all chance; of so many tokens by their logits noise is asked at least
constexpr int kManyBlocks = 4;  // for each value wanted: then few others reach the least of the blocks' highest

int blocks_of(int n) { return (n + kBlock - 1) / kBlock; }

}  // namespace

Candidates::Candidates(SamplingSettings settings, int outputs, std::vector<int32_t> tokens, const Kernels* kernels)
    : settings_(settings.choice), vocab_(settings.processing.vocab), own_(outputs), outputs_(outputs), tokens_(std::move(tokens)), kernels_(kernels) {
  if (outputs_ < 1 || vocab_ < 1 || (tokens_.empty() ? outputs_ > vocab_ : tokens_.size() != static_cast<size_t>(outputs_)))
    throw std::invalid_argument("candidates: vocabularies do not fit");
  if (!(settings_.temperature >= 0.0) || settings_.top_k < 0) throw std::invalid_argument("candidates: settings out of range");
  if (!tokens_.empty()) {
    columns_.assign(static_cast<size_t>(vocab_), -1);
    members_.assign(static_cast<size_t>(blocks_of(vocab_)), 0);
    for (int column = 0; column < outputs_; column++) name(column, true);
  }
  if (settings.processing.idle()) return;
  wide_.assign(static_cast<size_t>(vocab_), 0.0f);
  processor_ = std::make_unique<Processor>(std::move(settings.processing), kernels);
}

// The column is its token's, or no longer.
void Candidates::name(int column, bool named) {
  const int32_t token = tokens_[static_cast<size_t>(column)];
  if (token < 0 || token >= vocab_) throw std::invalid_argument("candidates: a token outside the vocabulary");
  columns_[static_cast<size_t>(token)] = named ? column : -1;
  uint64_t& group = members_[static_cast<size_t>(token) / kBlock];
  const uint64_t bit = uint64_t(1) << (token % kBlock);
  group = named ? group | bit : group & ~bit;
}

void Candidates::add(const std::vector<int32_t>& tokens) {
  if (tokens_.empty()) throw std::invalid_argument("candidates: tokens beside all");
  const int first = (own_ + kTile - 1) / kTile * kTile;
  for (int column = first; column < outputs_; column++) name(column, false);
  tokens_.resize(static_cast<size_t>(own_));
  if (!tokens.empty()) tokens_.resize(static_cast<size_t>(first), -1);
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  outputs_ = static_cast<int>(tokens_.size());
  for (int column = first; column < outputs_; column++) name(column, true);
  words_.clear();  // those who have their group's noise may be others
}

void Candidates::blank(float* logits, int rows, size_t stride) const {
  for (int i = 0; i < rows; i++)
    for (size_t column = static_cast<size_t>(own_); column < tokens_.size() && tokens_[column] < 0; column++)
      logits[static_cast<size_t>(i) * stride + column] = -std::numeric_limits<float>::infinity();
}

void Candidates::at(uint32_t position) {
  if (settings_.temperature == 0.0 || !settings_.coupled || (position == position_ && !words_.empty())) return;
  position_ = position;
  const std::vector<float> nothing(static_cast<size_t>(blocks_of(vocab_)), 0.0f);
  bounds_.resize(nothing.size());
  words_.resize((nothing.size() + 15) / 16 * 16);  // as `lift` wants
  kernels_->lift(settings_.seed, position, nothing.data(), static_cast<int>(nothing.size()), -1.0f, 0.0f, 1.0f, words_.data(),
                 bounds_.data());
  holders_.clear();
  for (int group = 0; group < blocks_of(vocab_); group++) {
    const int who = holder_of(group), token = group * kBlock + who;
    if (tokens_.empty() ? token >= outputs_ : (members_[static_cast<size_t>(group)] >> who & 1u) == 0) continue;
    holders_.push_back({tokens_.empty() ? token : columns_[static_cast<size_t>(token)], token, noise(token)});
  }
}

// Which token of a group has its highest noise.
int Candidates::holder_of(int group) const { return holder(static_cast<uint32_t>(words_[static_cast<size_t>(group)] >> 32)); }

double Candidates::noise(int token) const {
  const uint64_t words = words_[static_cast<size_t>(token) / kBlock];
  return gumbel_noise(settings_.seed, position_, token, least_noise(static_cast<uint32_t>(words)), holder(static_cast<uint32_t>(words >> 32)));
}

// The logits, or where tokens' logits depend on the text, those of the whole vocabulary after that.
Candidates::Row Candidates::processed(const float* logits, const Text& text) const {
  if (processor_ == nullptr) return {logits, outputs_, tokens_.empty() ? nullptr : tokens_.data()};
  std::fill(wide_.begin(), wide_.end(), -std::numeric_limits<float>::infinity());
  if (tokens_.empty()) std::copy(logits, logits + outputs_, wide_.begin());
  for (size_t i = 0; i < tokens_.size(); i++)
    if (tokens_[i] >= 0) wide_[static_cast<size_t>(tokens_[i])] = logits[i];
  return {(*processor_)(wide_.data(), text, nullptr), vocab_, nullptr};
}

// The best by their logits, in order: at least `count` if there are so many.
std::vector<int32_t> Candidates::shortlist(const Row& row, const std::vector<float>& tops, int count) const {
  const int n = row.n, blocks = static_cast<int>(tops.size());
  float least = -std::numeric_limits<float>::max();
  std::vector<int32_t> list(static_cast<size_t>(n));
  if (blocks >= kManyBlocks * count) least = kernels_->kth_of(tops.data(), blocks, count, list.data());  // so many reach it at least
  else if (n > count) least = kernels_->kth_of(row.values, n, count, list.data());
  least = std::max(least, -std::numeric_limits<float>::max());
  list.resize(static_cast<size_t>(kernels_->collect(row.values, n, tops.data(), least, list.data())));
  std::sort(list.begin(), list.end(), [&](int32_t a, int32_t b) {
    return row.values[a] > row.values[b] || (row.values[a] == row.values[b] && a < b);
  });
  return list;
}

// How many of the list top-k, top-p and min-p leave; `mass`: of all, in weights of the best.
size_t Candidates::kept(const Row& row, const std::vector<int32_t>& list, double mass) const {
  const float top = row.values[list[0]];
  size_t keep = list.size();
  if (settings_.top_k > 0) keep = std::min(keep, static_cast<size_t>(settings_.top_k));
  double before = 0.0;
  for (size_t i = 0; i < keep; i++) {
    const double score = (row.values[list[i]] - top) / settings_.temperature;
    if (i > 0 && ((settings_.has_min_p && score < settings_.log_min_p) || before >= settings_.top_p * mass)) return i;
    before += std::exp(score);
  }
  return keep;
}

std::vector<HeadGuess> Candidates::best(const float* logits, const Text& text, int count) const {
  const Row row = processed(logits, text);
  std::vector<float> tops(static_cast<size_t>(blocks_of(row.n)));
  const float top = kernels_->survey(row.values, row.n, tops.data());
  if (!std::isfinite(top) || count < 1) return {};
  const bool noisy = settings_.temperature > 0.0 && settings_.coupled;
  std::vector<int32_t> list = shortlist(row, tops, std::max(count, noisy ? kSharers : 0));
  const double temperature = settings_.temperature > 0.0 ? settings_.temperature : 1.0;
  const auto mass_of_all = [&] {
    const float lowest = -std::numeric_limits<float>::max();
    return kernels_->tally(row.values, row.n, tops.data(), lowest, top, top, static_cast<float>(kLog2E / temperature)).all;
  };
  std::vector<HeadGuess> found;
  if (!noisy) {
    const double mass = mass_of_all();
    if (settings_.temperature > 0.0) list.resize(kept(row, list, mass));
    list.resize(std::min(list.size(), static_cast<size_t>(count)));
    for (const int32_t i : list)
      found.push_back({row.token(i), static_cast<float>(std::min(1.0, std::exp((row.values[i] - top) / temperature) / mass))});
    return found;
  }
  const bool filters = settings_.top_k > 0 || settings_.top_p < 1.0 || settings_.has_min_p;
  const size_t keep = filters ? kept(row, list, settings_.top_p < 1.0 ? mass_of_all() : 1.0) : list.size();
  const bool open = keep == list.size() && (settings_.top_k == 0 || keep < static_cast<size_t>(settings_.top_k));
  list.resize(keep);
  return with_noise(row, list, open, count);
}

// Ranks the list by logits / temperature + noise. Where no filter has cut it short it is `open`: then tokens beside it
// count too whose noise is the highest of their group; hardly any other can come near the first. A candidate's chance is
// its share among the best kSharers, as sampling/ranking.py puts it.
std::vector<HeadGuess> Candidates::with_noise(const Row& row, const std::vector<int32_t>& list, bool open, int count) const {
  using Score = std::pair<double, int32_t>;  // in units of logits
  const double temperature = settings_.temperature;
  const auto higher = [](const Score& a, const Score& b) { return a.first > b.first || (a.first == b.first && a.second < b.second); };
  const size_t most = static_cast<size_t>(std::max(count, kSharers));
  std::vector<Score> best;  // a heap, the lowest first
  const auto consider = [&](int32_t i, double noise) {
    best.emplace_back(row.values[i] + temperature * noise, i);
    std::push_heap(best.begin(), best.end(), higher);
    if (best.size() <= most) return;
    std::pop_heap(best.begin(), best.end(), higher);
    best.pop_back();
  };
  if (open)
    for (const Holder& one : holders_) {
      const int32_t i = row.tokens == nullptr ? one.token : one.column;
      if (std::isfinite(row.values[i])) consider(i, one.noise);
    }
  for (const int32_t i : list) {
    const int token = row.token(i), group = token / kBlock;
    const bool done = open && token % kBlock == holder_of(group);
    const double most_noise = bounds_[static_cast<size_t>(group)];
    if (done || (best.size() == most && row.values[i] + temperature * most_noise < best.front().first)) continue;
    consider(i, noise(token));
  }
  std::sort_heap(best.begin(), best.end(), higher);
  double sum = 0.0;
  const size_t sharers = std::min(best.size(), static_cast<size_t>(kSharers));
  for (size_t i = 0; i < sharers; i++) sum += std::exp(best[i].first - best[0].first);
  std::vector<HeadGuess> found;
  for (size_t i = 0; i < std::min(sharers, static_cast<size_t>(count)); i++)
    found.push_back({row.token(best[i].second), static_cast<float>(std::exp(best[i].first - best[0].first) / sum)});
  return found;
}

}  // namespace forerun
