#include "model/decoder.h"

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <utility>

#include "model/forward.h"
#include "model/plan.h"

namespace forerun {
namespace {

std::vector<Cache::Use> use_all(std::vector<Cache*> caches) {
  std::sort(caches.begin(), caches.end(), std::less<Cache*>());
  if (std::adjacent_find(caches.begin(), caches.end()) != caches.end()) throw std::invalid_argument("forward: a cache is named twice");
  std::vector<Cache::Use> uses;
  uses.reserve(caches.size());
  for (Cache* cache : caches) uses.emplace_back(*cache);
  return uses;
}

}  // namespace

Decoder::Decoder(DecoderShape shape, DecoderWeights weights, std::shared_ptr<Team> team, const Kernels* kernels)
    : shape_(std::move(shape)),
      weights_(std::make_shared<const DecoderWeights>(std::move(weights))),
      team_(std::move(team)),
      kernels_(kernels) {
  const DecoderShape& s = shape_;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("decoder: ") + what);
  };
  for (const int size : {s.layers, s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim})
    require(size > 0 && size <= kMostInputs, "a size is out of range");
  require(s.vocab > 0 && s.vocab <= kMostOutputs, "the vocabulary is out of range");
  require(s.heads % s.kv_heads == 0, "heads are not a multiple of key-value heads");
  require(static_cast<int64_t>(s.heads) * s.head_dim <= kMostInputs, "the heads are too large");
  require(s.head_dim % 2 == 0 && s.inv_freq.size() == static_cast<size_t>(s.head_dim / 2), "rotary frequencies do not fit the head size");
  require(weights_->layers.size() == static_cast<size_t>(s.layers), "layers are missing");
  const auto shaped = [&](const PackedLinear& w, int outputs, int inputs) {
    require(!w.empty() && w.view().outputs == outputs && w.view().inputs == inputs, "a weight has another shape than the model says");
  };
  const auto sized = [&](const std::vector<float>& norm, int n) { require(norm.size() == static_cast<size_t>(n), "a norm has another size than the model says"); };
  const auto sized_if_there = [&](const std::vector<float>& norm, int n) {
    if (!norm.empty()) sized(norm, n);
  };
  const Entry& entry = weights_->entry;
  const bool drafts = entry.kind != Entry::Kind::tokens, pairs = entry.kind == Entry::Kind::eagle3;
  require(s.outputs >= 0 && s.outputs <= kMostOutputs, "the head's outputs are out of range");
  require(!drafts || s.hidden <= kMostInputs / 2, "a drafting head is too wide");
  shaped(weights_->embed, s.vocab, s.hidden);
  if (!weights_->head.empty()) shaped(weights_->head, outputs(), s.hidden);
  else require(outputs() == s.vocab, "there is no head of so many outputs");
  if (entry.kind == Entry::Kind::eagle) shaped(entry.fc, s.hidden, 2 * s.hidden);
  sized_if_there(entry.embed_norm, s.hidden);
  sized_if_there(entry.state_norm, s.hidden);
  if (drafts) sized_if_there(weights_->norm, s.hidden);
  else sized(weights_->norm, s.hidden);
  for (size_t l = 0; l < weights_->layers.size(); l++) {
    const LayerWeights& layer = weights_->layers[l];
    const int inputs = pairs && l == 0 ? 2 * s.hidden : s.hidden;
    shaped(layer.q, s.heads * s.head_dim, inputs);
    shaped(layer.k, s.kv_heads * s.head_dim, inputs);
    shaped(layer.v, s.kv_heads * s.head_dim, inputs);
    shaped(layer.o, s.hidden, s.heads * s.head_dim);
    shaped(layer.gate, s.intermediate, s.hidden);
    shaped(layer.up, s.intermediate, s.hidden);
    shaped(layer.down, s.hidden, s.intermediate);
    if (drafts && l == 0) sized_if_there(layer.input_norm, s.hidden);
    else sized(layer.input_norm, s.hidden);
    sized(layer.post_norm, s.hidden);
    if (!layer.q_norm.empty()) sized(layer.q_norm, s.head_dim);
    if (!layer.k_norm.empty()) sized(layer.k_norm, s.head_dim);
  }
}

Decoder::Decoder(const Decoder& whole, int layers)
    : shape_(whole.shape_), weights_(whole.weights_), team_(whole.team_), kernels_(whole.kernels_) {
  if (layers < 1 || layers > shape_.layers) throw std::invalid_argument("decoder: no so many layers");
  shape_.layers = layers;
}

int Decoder::outputs() const { return shape_.outputs > 0 ? shape_.outputs : shape_.vocab; }

int Decoder::logits_stride() const { return (outputs() + kTile - 1) / kTile * kTile; }

Decoder::~Decoder() { team_->wait_idle(); }

void Decoder::forward(Batch batch, float* logits, float* features) {
  const Team::Turn turn = team_->turn();
  const std::vector<Cache::Use> uses = use_all(batch.caches);
  const bool drafts = weights_->entry.kind != Entry::Kind::tokens;
  if (batch.states.size() != (drafts ? batch.tokens.size() * static_cast<size_t>(shape_.hidden) : 0))
    throw std::invalid_argument("forward: states of another size");
  const Linear& head = (weights_->head.empty() ? weights_->embed : weights_->head).view();
  if (batch.more.tiles > 0 && (batch.more.format != head.format || batch.more.inputs != head.inputs))
    throw std::invalid_argument("forward: more outputs of another shape");
  Plan plan = make_plan(shape_, batch);
  const auto forward = std::make_shared<Forward>(*this, batch, std::move(plan), logits, features);
  workspace_.reserve(forward->bytes());
  forward->lay_out(workspace_.as<uint8_t>());
  stage_rows(batch);  // the last thing that may fail
  profile_ = Profile{};
  team_->run(turn, forward);
}

Profile Decoder::profile() {
  const Team::Turn turn = team_->turn();
  return profile_;
}

}  // namespace forerun
