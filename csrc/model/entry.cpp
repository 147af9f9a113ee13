// What comes before the first layer: embeddings and rotary angles, and of a drafting head its joined inputs.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/forward.h"

namespace forerun {

// Embeddings, and the rotary angles of each row, in float32 as transformers computes them.
void Forward::embed(Member& me) {
  const int half = shape_.head_dim / 2;
  share(me, n_, 1, [&](int64_t i, int64_t) {
    if (d_.weights_->entry.kind == Entry::Kind::tokens) d_.weights_->embed.unpack_row(batch_.tokens[i], hidden_row(i));
    else join(i);
    const float position = static_cast<float>(plan_.rows[i].position);
    for (int j = 0; j < half; j++) {
      const double angle = position * shape_.inv_freq[j];
      cos_[i * half + j] = static_cast<float>(std::cos(angle)) * shape_.rope_scale;
      sin_[i * half + j] = static_cast<float>(std::sin(angle)) * shape_.rope_scale;
    }
  });
  if (d_.weights_->entry.kind != Entry::Kind::eagle) return;
  const PackedLinear& fc = d_.weights_->entry.fc;
  auto x = joined(me, kinds_of({&fc}));
  share(me, fc.view().tiles, piece(fc.view().tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, fc, x.get(), 0, static_cast<int>(begin), static_cast<int>(end));
  });
}

// A drafting head's row: its token's embedding and its state side by side, and where the residual begins.
void Forward::join(int64_t i) {
  const Entry& entry = d_.weights_->entry;
  const int hidden = shape_.hidden;
  float *embedding = joined_ + static_cast<size_t>(i) * 2 * hidden, *state = embedding + hidden;
  d_.weights_->embed.unpack_row(batch_.tokens[i], embedding);
  std::memcpy(state, batch_.states.data() + static_cast<size_t>(i) * hidden, hidden * sizeof(float));
  float* residual = hidden_row(i);
  if (entry.kind == Entry::Kind::eagle) std::fill(residual, residual + hidden, 0.0f);
  else std::memcpy(residual, state, hidden * sizeof(float));
  if (!entry.embed_norm.empty()) k_.rms_norm(embedding, entry.embed_norm.data(), hidden, shape_.norm_eps, embedding);
  if (!entry.state_norm.empty()) k_.rms_norm(state, entry.state_norm.data(), hidden, shape_.norm_eps, state);
  if (entry.residual_is_normed) std::memcpy(residual, state, hidden * sizeof(float));
}

}  // namespace forerun
