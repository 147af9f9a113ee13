// Hydra's heads (Ankner et al., arXiv 2402.05109): each guesses, from the target's last hidden state and the tokens since,
// the next one. They are Medusa's, but for seeing the guesses above their own.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/candidates.h"
#include "drafting/last_state.h"
#include "drafting/text_vocabulary.h"
#include "model/projector.h"
#include "runtime/threads.h"

namespace forerun {

// Head k reads c, the state and the embeddings of k + 1 tokens: y = R c + silu(W c), then y += silu(block y) for each
// block, then logits = out y.
struct HydraHead {
  PackedLinear first;  // W and R, [2 hidden, (k + 2) hidden]: one layer, read at once
  std::vector<PackedLinear> blocks;
  PackedLinear out;
};

class HydraHeads {
 public:
  // embedding: the target's. tokens, rows: as for MedusaHeads.
  // Throws std::invalid_argument for layers that do not go together.
  HydraHeads(std::vector<HydraHead> heads, PackedLinear embedding, std::vector<int32_t> tokens, std::shared_ptr<const TargetRows> rows,
             std::shared_ptr<Team> team, const Kernels* kernels);

  int hidden() const { return heads_[0].out.view().inputs; }
  int outputs() const { return heads_[0].out.view().outputs; }
  int size() const { return static_cast<int>(heads_.size()); }
  const std::vector<int32_t>& tokens() const { return tokens_; }
  const std::shared_ptr<const TargetRows>& rows() const { return rows_; }
  const Kernels* kernels() const { return &projector_.kernels(); }
  Team& team() const { return projector_.team(); }
  int inputs(int index) const { return (index + 2) * hidden(); }  // what head `index` reads of a row
  size_t stride(const Linear& more) const { return Projector::stride(heads_[0].out) + static_cast<size_t>(more.tiles) * kTile; }

  // The embedding of a token, [hidden]. Throws std::invalid_argument for one outside the vocabulary.
  void embed(int32_t token, float* out) const;
  // Head `index`'s logits of rows [rows][inputs(index)]; [rows][stride(more)]: outputs and padding, then those of `more`.
  void logits(int index, const float* inputs, int rows, const Linear& more, float* logits) const;

 private:
  std::vector<HydraHead> heads_;
  PackedLinear embedding_;
  std::vector<int32_t> tokens_;
  std::shared_ptr<const TargetRows> rows_;
  Projector projector_;
};

class HydraDrafter : public LastStateDrafter {
 public:
  HydraDrafter(std::shared_ptr<const HydraHeads> heads, Candidates candidates);

  // The most probable tree of at most `nodes` guesses, as deep as there are heads; a guess of less than `least_chance` is
  // not followed. Empty when nothing is known of the last token.
  Draft propose(int nodes, int depth, float least_chance);

 private:
  std::shared_ptr<const HydraHeads> heads_;
  std::vector<float> inputs_, logits_;  // of a depth's nodes; kept, for fresh pages are slow
};

}  // namespace forerun
