// Single linear layers over rows, outside of a decoder's forward.
#pragma once
#include <memory>
#include <vector>

#include "kernels/kernels.h"
#include "runtime/threads.h"
#include "weights/packed.h"

namespace forerun {

class Projector {
 public:
  Projector(std::shared_ptr<Team> team, const Kernels* kernels) : team_(std::move(team)), kernels_(kernels) {}

  // x: [rows][w.inputs]. y: [rows][stride(w)], of which the first w.outputs of a row are its outputs. Width-invariant.
  // more: of the same inputs and format; its outputs follow behind a row's stride, in whole tiles too.
  void apply(const PackedLinear& w, const float* x, int rows, float* y, const Linear& more = {}) const;
  static size_t stride(const PackedLinear& w) { return static_cast<size_t>(w.view().tiles) * kTile; }

  Team& team() const { return *team_; }
  const Kernels& kernels() const { return *kernels_; }

 private:
  std::shared_ptr<Team> team_;
  const Kernels* kernels_;
};

}  // namespace forerun
