#include "drafting/eagle.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

constexpr int kPrefillRows = 256;  // rows of a forward at most
constexpr int kMostPending = 64;   // pairs that wait for the next proposal
constexpr int kWindow = 32;        // pairs that are read by a head that did not read along: nearer ones tell most

}  // namespace

EagleHead::EagleHead(DecoderShape shape, DecoderWeights weights, Reduction reduction, std::vector<int32_t> tokens,
                     std::shared_ptr<const TargetRows> rows, std::shared_ptr<Team> team, const Kernels* kernels)
    : reduction_(std::move(reduction)), tokens_(std::move(tokens)), rows_(std::move(rows)), projector_(team, kernels),
      decoder_(std::move(shape), std::move(weights), team, kernels) {
  const DecoderShape& s = decoder_.shape();
  if (decoder_.weights().entry.kind == Entry::Kind::tokens) throw std::invalid_argument("eagle: weights of a language model");
  const Linear& fc = reduction_.fc.view();
  if (!reduction_.fc.empty() && fc.outputs != s.hidden) throw std::invalid_argument("eagle: fc has another shape");
  features_ = reduction_.fc.empty() ? s.hidden : fc.inputs;
  if (!reduction_.norm.empty() && reduction_.norm.size() != static_cast<size_t>(features_)) throw std::invalid_argument("eagle: a norm of another size");
  if (reduction_.norm_groups < 1 || features_ % reduction_.norm_groups != 0) throw std::invalid_argument("eagle: norms do not divide the features");
  if (tokens_.empty() ? decoder_.outputs() > s.vocab : tokens_.size() != static_cast<size_t>(decoder_.outputs()))
    throw std::invalid_argument("eagle: another number of tokens than outputs");
  const Linear& head = (decoder_.weights().head.empty() ? decoder_.weights().embed : decoder_.weights().head).view();
  if (rows_ != nullptr && (tokens_.empty() || rows_->from.view().inputs != s.hidden || rows_->format != head.format))
    throw std::invalid_argument("eagle: rows that do not fit the head");
}

std::vector<float> EagleHead::states(const float* features, int rows) const {
  const size_t n = static_cast<size_t>(rows), width = static_cast<size_t>(features_), hidden = static_cast<size_t>(shape().hidden);
  if (reduction_.fc.empty()) return {features, features + n * hidden};
  std::vector<float> normed;
  if (!reduction_.norm.empty()) {
    normed.resize(n * width);
    const int part = features_ / reduction_.norm_groups;
    for (size_t at = 0; at < n * width; at += static_cast<size_t>(part))
      kernels()->rms_norm(features + at, reduction_.norm.data() + at % width, part, shape().norm_eps, normed.data() + at);
    features = normed.data();
  }
  const size_t stride = Projector::stride(reduction_.fc);
  std::vector<float> y(n * stride);
  projector_.apply(reduction_.fc, features, rows, y.data());
  for (size_t i = 1; i < n && stride != hidden; i++) std::memmove(y.data() + i * hidden, y.data() + i * stride, hidden * sizeof(float));
  y.resize(n * hidden);
  return y;
}

EagleDrafter::EagleDrafter(std::shared_ptr<EagleHead> head, Candidates candidates, KvType type, int capacity)
    : head_(std::move(head)), candidates_(std::move(candidates)), vocabulary_(head_->rows(), head_->tokens()),
      cache_(head_->shape().layers, head_->shape().kv_heads, head_->shape().head_dim, type, capacity) {}

void EagleDrafter::begin() {
  cache_.truncate(0);
  text_.clear();
  vocabulary_.truncate(0);
  pending_.clear();
  start_ = 0;
  known_ = false;
  reads_ = true;
}

void EagleDrafter::observe(const int32_t* tokens, const float* features, int count, bool reads) {
  if (count < 1) return;
  for (int i = 0; i < count; i++)
    if (tokens[i] < 0 || tokens[i] >= head_->shape().vocab) throw std::invalid_argument("eagle: a token outside the vocabulary");
  if (features != nullptr && text_.empty()) throw std::invalid_argument("eagle: features of nothing");
  text_.insert(text_.end(), tokens, tokens + count);
  known_ = false;
  reads_ = reads;
  if (features == nullptr) {  // what was before cannot be joined to what will come
    cache_.truncate(0);
    pending_.clear();
    start_ = length() - 1;
    return;
  }
  pending_.insert(pending_.end(), features, features + static_cast<size_t>(count) * static_cast<size_t>(head_->features()));
  if (!reads && waiting() > kMostPending) keep_last(kWindow);
  while (waiting() > kMostPending) {
    const int room = cache_.capacity() - cache_.length();
    if (room < 1) break;
    compute_rows(std::min({waiting() - 1, kPrefillRows, room}), false);
  }
}

void EagleDrafter::truncate(int length) {
  if (length < 1 || length >= this->length()) return;
  const int pairs = std::max(length - 1 - start_, 0);
  text_.resize(static_cast<size_t>(length));
  vocabulary_.truncate(length);
  start_ = std::min(start_, length - 1);
  if (pairs < cache_.length()) cache_.truncate(pairs);
  pending_.resize(static_cast<size_t>(pairs - cache_.length()) * static_cast<size_t>(head_->features()));
  known_ = false;  // until a pair is observed
}

// Forgets all but the last pairs that wait.
void EagleDrafter::keep_last(int pairs) {
  pending_.erase(pending_.begin(), pending_.end() - static_cast<long>(pairs) * head_->features());
  cache_.truncate(0);
  start_ = length() - 1 - pairs;
}

// The first pairs that wait become rows of the cache; `last`: state and logits of the last one are kept.
void EagleDrafter::compute_rows(int rows, bool last) {
  const size_t hidden = static_cast<size_t>(head_->shape().hidden);
  Batch batch;
  batch.caches = {&cache_};
  const int32_t* tokens = text_.data() + start_ + cache_.length() + 1;
  batch.tokens.assign(tokens, tokens + rows);
  batch.parents.resize(static_cast<size_t>(rows));
  std::iota(batch.parents.begin(), batch.parents.end(), -1);
  batch.owners.assign(static_cast<size_t>(rows), 0);
  batch.states = head_->states(pending_.data(), rows);
  if (last) {
    batch.logits = {rows - 1};
    batch.taps = {head_->shape().layers};
    batch.more = vocabulary_.outputs();
    logits_.resize(stride());
  }
  std::vector<float> out(last ? static_cast<size_t>(rows) * hidden : 0);
  head_->decoder().forward(std::move(batch), logits_.data(), out.data());
  std::vector<int32_t> path(static_cast<size_t>(rows));
  std::iota(path.begin(), path.end(), 0);
  cache_.commit(path);
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<long>(rows) * head_->features());
  if (!last) return;
  candidates_.blank(logits_.data(), 1, 0);
  state_.assign(out.end() - static_cast<long>(hidden), out.end());
}

// All pairs that wait.
void EagleDrafter::compute() {
  if (!reads_ && waiting() > kWindow) keep_last(kWindow);
  while (!pending_.empty()) {
    const int all = waiting();
    if (all > cache_.capacity() - cache_.length()) return;  // the head's context ends here
    const int rows = std::min(all, kPrefillRows);
    compute_rows(rows, rows == all);
    known_ = rows == all;
  }
}

std::vector<float> EagleDrafter::logits() const {
  if (!known_) return {};
  std::vector<float> logits(logits_.begin(), logits_.begin() + head_->decoder().outputs());
  const auto more = logits_.begin() + head_->decoder().logits_stride();
  logits.insert(logits.end(), more, more + static_cast<long>(rare().size()));
  return logits;
}

Draft EagleDrafter::propose(int nodes, int depth, float least_chance) {
  if (vocabulary_.follow(text_)) candidates_.add(vocabulary_.tokens());
  compute();
  depth = std::min(depth, cache_.capacity() - cache_.length() + 1);  // the deepest guesses are not computed
  if (!known_ || nodes < 1 || depth < 1) return {};
  GrowingTree tree(text_, nodes);
  rows_.assign(1, -1);
  tree.follow({0}, candidates_, logits_.data(), 0, head_->team());
  for (int level = 1; level < depth; level++) {
    const std::vector<int32_t> chosen = tree.worth_following(level, least_chance);
    if (chosen.empty() || static_cast<int>(chosen.size()) > cache_.room() - cache_.staged()) break;
    compute_level(tree, chosen);
    tree.follow(chosen, candidates_, level_logits_.data(), stride(), head_->team());
  }
  cache_.truncate(cache_.length());  // the stage is forgotten
  return tree.best();
}

// Computes nodes of one depth.
void EagleDrafter::compute_level(const GrowingTree& tree, const std::vector<int32_t>& level) {
  const size_t hidden = static_cast<size_t>(head_->shape().hidden);
  Batch batch;
  batch.caches = {&cache_};
  batch.continues = tree.depth(level[0]) > 1;
  const int staged = batch.continues ? cache_.staged() : 0, rows = static_cast<int>(level.size());
  rows_.resize(tree.size(), -1);
  for (int i = 0; i < rows; i++) {
    const int32_t node = level[static_cast<size_t>(i)], above = rows_[static_cast<size_t>(tree.parent(node))];
    const float* state = above < 0 ? state_.data() : staged_states_.data() + static_cast<size_t>(above) * hidden;
    batch.tokens.push_back(tree.token(node));
    batch.parents.push_back(above);
    batch.owners.push_back(0);
    batch.logits.push_back(i);
    batch.states.insert(batch.states.end(), state, state + hidden);
    rows_[static_cast<size_t>(node)] = staged + i;
  }
  batch.taps = {head_->shape().layers};
  batch.more = vocabulary_.outputs();
  level_logits_.resize(std::max(level_logits_.size(), static_cast<size_t>(rows) * stride()));
  staged_states_.resize(std::max(staged_states_.size(), static_cast<size_t>(staged + rows) * hidden));
  head_->decoder().forward(std::move(batch), level_logits_.data(), staged_states_.data() + static_cast<size_t>(staged) * hidden);
}

}  // namespace forerun
