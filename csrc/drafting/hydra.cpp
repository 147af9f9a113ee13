#include "drafting/hydra.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "drafting/growing.h"

namespace forerun {
namespace {

// y += silu(x), both [n].
class AddSilu {
 public:
  AddSilu(const Kernels& kernels, int n)
      : kernels_(kernels), n_(n), whole_((n + kTile - 1) / kTile * kTile), part_(static_cast<size_t>(whole_)), ones_(part_.size(), 1.0f) {}

  void operator()(const float* x, float* y) {
    std::memcpy(part_.data(), x, static_cast<size_t>(n_) * sizeof(float));
    kernels_.swiglu(part_.data(), ones_.data(), whole_);
    kernels_.accumulate(y, part_.data(), n_);
  }

 private:
  const Kernels& kernels_;
  int n_, whole_;
  std::vector<float> part_, ones_;
};

bool shaped(const PackedLinear& layer, int outputs, int inputs) {
  return !layer.empty() && layer.view().outputs == outputs && layer.view().inputs == inputs;
}

}  // namespace

HydraHeads::HydraHeads(std::vector<HydraHead> heads, PackedLinear embedding, std::vector<int32_t> tokens, std::shared_ptr<const TargetRows> rows,
                       std::shared_ptr<Team> team, const Kernels* kernels)
    : heads_(std::move(heads)), embedding_(std::move(embedding)), tokens_(std::move(tokens)), rows_(std::move(rows)),
      projector_(std::move(team), kernels) {
  if (heads_.empty() || heads_[0].out.empty()) throw std::invalid_argument("hydra: no heads");
  if (embedding_.empty() || embedding_.view().inputs != hidden()) throw std::invalid_argument("hydra: an embedding of another size");
  const int vocab = embedding_.view().outputs;
  for (int k = 0; k < size(); k++) {
    const HydraHead& head = heads_[static_cast<size_t>(k)];
    if (!shaped(head.out, outputs(), hidden()) || !shaped(head.first, 2 * hidden(), inputs(k)))
      throw std::invalid_argument("hydra: a head has another shape");
    for (const PackedLinear& block : head.blocks)
      if (!shaped(block, hidden(), hidden())) throw std::invalid_argument("hydra: a block has another shape");
  }
  if (tokens_.empty() ? outputs() > vocab : tokens_.size() != static_cast<size_t>(outputs()))
    throw std::invalid_argument("hydra: another number of tokens than outputs");
  for (const int32_t token : tokens_)
    if (token < 0 || token >= vocab) throw std::invalid_argument("hydra: a token outside the vocabulary");
  if (rows_ != nullptr && (tokens_.empty() || rows_->from.view().inputs != hidden() || rows_->from.view().outputs > vocab ||
                           rows_->format != heads_[0].out.view().format))
    throw std::invalid_argument("hydra: rows that do not fit the heads");
}

void HydraHeads::embed(int32_t token, float* out) const {
  if (token < 0 || token >= embedding_.view().outputs) throw std::invalid_argument("hydra: a token outside the vocabulary");
  embedding_.unpack_row(token, out);
}

void HydraHeads::logits(int index, const float* inputs, int rows, const Linear& more, float* logits) const {
  const HydraHead& head = heads_.at(static_cast<size_t>(index));
  const size_t n = static_cast<size_t>(rows), width = static_cast<size_t>(hidden()), both = Projector::stride(head.first);
  AddSilu add_silu(*kernels(), hidden());
  std::vector<float> y(n * width), part(n * both);
  projector_.apply(head.first, inputs, rows, part.data());
  for (size_t i = 0; i < n; i++) {
    std::memcpy(y.data() + i * width, part.data() + i * both + width, width * sizeof(float));
    add_silu(part.data() + i * both, y.data() + i * width);
  }
  for (const PackedLinear& block : head.blocks) {
    const size_t stride = Projector::stride(block);  // not more than the first block's
    projector_.apply(block, y.data(), rows, part.data());
    for (size_t i = 0; i < n; i++) add_silu(part.data() + i * stride, y.data() + i * width);
  }
  projector_.apply(head.out, y.data(), rows, logits, more);
}

HydraDrafter::HydraDrafter(std::shared_ptr<const HydraHeads> heads, Candidates candidates)
    : LastStateDrafter(heads->hidden(), std::move(candidates), heads->rows(), heads->tokens()), heads_(std::move(heads)) {}

Draft HydraDrafter::propose(int nodes, int depth, float least_chance) {
  depth = std::min(depth, heads_->size());
  if (state_.empty() || nodes < 1 || depth < 1) return {};
  if (vocabulary_.follow(text_)) candidates_.add(vocabulary_.tokens());
  const Linear more = vocabulary_.outputs();
  const size_t hidden = static_cast<size_t>(hidden_), stride = heads_->stride(more);
  GrowingTree tree(text_, nodes);
  std::vector<int32_t> level = {0};
  inputs_ = state_;
  inputs_.resize(2 * hidden);
  heads_->embed(text_.back(), inputs_.data() + hidden);
  for (int head = 0;; head++) {
    logits_.resize(std::max(logits_.size(), level.size() * stride));
    heads_->logits(head, inputs_.data(), static_cast<int>(level.size()), more, logits_.data());
    tree.follow(level, candidates_, logits_.data(), stride, heads_->team());
    if (head + 1 == depth) break;
    const std::vector<int32_t> next = tree.worth_following(head + 1, least_chance);
    if (next.empty()) break;
    // a node's inputs are its parent's, and the embedding of its own token
    const size_t above = static_cast<size_t>(heads_->inputs(head)), width = above + hidden;
    std::vector<float> deeper(next.size() * width);
    for (size_t i = 0; i < next.size(); i++) {
      const size_t parent = static_cast<size_t>(std::find(level.begin(), level.end(), tree.parent(next[i])) - level.begin());
      std::memcpy(deeper.data() + i * width, inputs_.data() + parent * above, above * sizeof(float));
      heads_->embed(tree.token(next[i]), deeper.data() + i * width + above);
    }
    inputs_ = std::move(deeper);
    level = next;
  }
  return tree.best();
}

}  // namespace forerun
