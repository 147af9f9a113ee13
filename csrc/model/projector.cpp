#include "model/projector.h"

#include <algorithm>

#include "runtime/buffer.h"

namespace forerun {

void Projector::apply(const PackedLinear& w, const float* x, int rows, float* y) const {
  constexpr int kRowBlock = 64;
  const Linear& view = w.view();
  const RowKind kind = kernels_->row_kind(view.format);
  const size_t row_bytes = kernels_->row_bytes(kind, view.inputs), ldy = stride(w);
  const Buffer prepared(row_bytes * static_cast<size_t>(std::min(rows, kRowBlock)));
  for (int begin = 0; begin < rows; begin += kRowBlock) {
    const int n = std::min(kRowBlock, rows - begin);
    for (int i = 0; i < n; i++)
      kernels_->prepare(kind, x + static_cast<size_t>(begin + i) * view.inputs, view.inputs, 0, view.inputs,
                        prepared.as<uint8_t>() + i * row_bytes);
    team_->for_each(view.tiles, 8, [&](int64_t first, int64_t last) {
      kernels_->linear(view, prepared.as<uint8_t>(), n, static_cast<int>(first), static_cast<int>(last),
                       y + static_cast<size_t>(begin) * ldy + first * kTile, ldy);
    });
  }
}

}  // namespace forerun
