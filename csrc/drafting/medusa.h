// Medusa's heads (Cai et al., arXiv 2401.10774): each guesses, from the target's last hidden state alone, one of the
// tokens after the next.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/candidates.h"
#include "drafting/last_state.h"
#include "drafting/text_vocabulary.h"
#include "model/projector.h"

namespace forerun {

// A head: x += silu(block x) for each block, then logits = out x.
struct MedusaHead {
  std::vector<PackedLinear> blocks;
  PackedLinear out;
};

class MedusaHeads {
 public:
  // tokens: the target's token of each output, or empty where they are the same. rows: where those of a text come from that
  // the heads lack, or null.
  MedusaHeads(std::vector<MedusaHead> heads, std::vector<int32_t> tokens, std::shared_ptr<const TargetRows> rows,
              std::shared_ptr<Team> team, const Kernels* kernels);

  int hidden() const { return heads_[0].out.view().inputs; }
  int outputs() const { return heads_[0].out.view().outputs; }
  int size() const { return static_cast<int>(heads_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::shared_ptr<const TargetRows>& rows() const { return rows_; }
  const Kernels* kernels() const { return &projector_.kernels(); }

  // Head `index`'s logits for a state [hidden]; [outputs] and padding, then those of `more` likewise.
  std::vector<float> logits(int index, const float* state, const Linear& more) const;

 private:
  std::vector<MedusaHead> heads_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const TargetRows> rows_;
  Projector projector_;
};

class MedusaDrafter : public LastStateDrafter {
 public:
  MedusaDrafter(std::shared_ptr<const MedusaHeads> heads, Candidates candidates);

  // The most probable tree of at most `nodes` guesses, a depth a head. A path's chance is the product of its guesses'.
  Draft propose(int nodes, int depth, float least_chance);

 private:
  std::shared_ptr<const MedusaHeads> heads_;
};

}  // namespace forerun
