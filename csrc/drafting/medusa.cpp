#include "drafting/medusa.h"

#include <algorithm>
#include <cmath>
#include <queue>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

constexpr int kChildren = 10;  // of a node, at most

}  // namespace

MedusaHeads::MedusaHeads(std::vector<MedusaHead> heads, std::vector<int32_t> tokens, std::shared_ptr<const TargetRows> rows,
                         std::shared_ptr<Team> team, const Kernels* kernels)
    : heads_(std::move(heads)), tokens_(std::move(tokens)), rows_(std::move(rows)), projector_(std::move(team), kernels) {
  if (heads_.empty()) throw std::invalid_argument("medusa: no heads");
  for (const MedusaHead& head : heads_) {
    if (head.out.empty() || head.out.view().inputs != hidden() || head.out.view().outputs != outputs())
      throw std::invalid_argument("medusa: a head has another shape");
    for (const PackedLinear& block : head.blocks)
      if (block.empty() || block.view().inputs != hidden() || block.view().outputs != hidden())
        throw std::invalid_argument("medusa: a block has another shape");
  }
  if (!tokens_.empty() && tokens_.size() != static_cast<size_t>(outputs())) throw std::invalid_argument("medusa: another number of tokens than outputs");
  if (rows_ != nullptr && (tokens_.empty() || rows_->from.view().inputs != hidden() || rows_->format != heads_[0].out.view().format))
    throw std::invalid_argument("medusa: rows that do not fit the heads");
}

std::vector<float> MedusaHeads::logits(int index, const float* state, const Linear& more) const {
  const MedusaHead& head = heads_.at(static_cast<size_t>(index));
  std::vector<float> x(state, state + hidden());
  for (const PackedLinear& block : head.blocks) {
    std::vector<float> y(Projector::stride(block));
    projector_.apply(block, x.data(), 1, y.data());
    for (size_t i = 0; i < x.size(); i++) x[i] += y[i] / (1.0f + std::exp(-y[i]));
  }
  std::vector<float> logits(Projector::stride(head.out) + static_cast<size_t>(more.tiles) * kTile);
  projector_.apply(head.out, x.data(), 1, logits.data(), more);
  return logits;
}

MedusaDrafter::MedusaDrafter(std::shared_ptr<const MedusaHeads> heads, Candidates candidates)
    : LastStateDrafter(heads->hidden(), std::move(candidates), heads->rows(), heads->tokens()), heads_(std::move(heads)) {}

Draft MedusaDrafter::propose(int nodes, int depth, float least_chance) {
  Draft draft;
  if (state_.empty()) return draft;
  depth = std::min(depth, heads_->size());
  if (vocabulary_.follow(text_)) candidates_.add(vocabulary_.tokens());
  const Linear more = vocabulary_.outputs();
  std::vector<std::vector<HeadGuess>> levels;  // of each head, the most promising first
  // A guess in waiting: the candidate `rank` of a level, below node `parent`.
  struct Guess {
    float chance;
    int parent, level, rank;
    bool operator<(const Guess& other) const { return chance < other.chance; }
  };
  std::priority_queue<Guess> waiting;
  const auto wait = [&](int parent, float chance, int level, int rank) {
    if (level >= depth) return;
    if (level == static_cast<int>(levels.size())) {  // a head is computed when a guess of its depth can be among the best
      candidates_.at(static_cast<uint32_t>(text_.size()) + static_cast<uint32_t>(level));
      const Text text{text_.data(), static_cast<int>(text_.size()), nullptr, 0};
      std::vector<float> logits = heads_->logits(level, state_.data(), more);
      candidates_.blank(logits.data(), 1, logits.size());
      levels.push_back(candidates_.best(logits.data(), text, std::min(nodes, kChildren)));
    }
    const std::vector<HeadGuess>& found = levels[static_cast<size_t>(level)];
    if (rank < static_cast<int>(found.size())) waiting.push({chance * found[static_cast<size_t>(rank)].chance, parent, level, rank});
  };
  wait(0, 1.0f, 0, 0);
  while (!waiting.empty() && static_cast<int>(draft.tokens.size()) < nodes) {
    const Guess guess = waiting.top();
    waiting.pop();
    draft.tokens.push_back(levels[static_cast<size_t>(guess.level)][static_cast<size_t>(guess.rank)].token);
    draft.parents.push_back(guess.parent);
    draft.chances.push_back(guess.chance);
    const int node = static_cast<int>(draft.tokens.size());
    const float above = guess.parent > 0 ? draft.chances[static_cast<size_t>(guess.parent) - 1] : 1.0f;
    wait(guess.parent, above, guess.level, guess.rank + 1);
    if (guess.chance >= least_chance) wait(node, guess.chance, guess.level + 1, 0);
  }
  return draft;
}

}  // namespace forerun
