#include "model/projector.h"

#include <algorithm>
#include <cstdint>

#include "model/outputs.h"

namespace forerun {

void Projector::apply(const PackedLinear& w, const float* x, int rows, float* y, const Linear& more) const {
  constexpr int kRowBlock = 64;
  const Linear& view = w.view();
  const RowKind kind = kernels_->row_kind(view.format);
  const size_t row_bytes = kernels_->row_bytes(kind, view.inputs), ldy = stride(w) + static_cast<size_t>(more.tiles) * kTile;
  std::vector<uint8_t> room(row_bytes * static_cast<size_t>(std::min(rows, kRowBlock)) + 64);
  uint8_t* prepared = room.data() + (64 - reinterpret_cast<uintptr_t>(room.data()) % 64);  // rows are aligned
  for (int begin = 0; begin < rows; begin += kRowBlock) {
    const int n = std::min(kRowBlock, rows - begin);
    for (int i = 0; i < n; i++)
      kernels_->prepare(kind, x + static_cast<size_t>(begin + i) * view.inputs, view.inputs, 0, view.inputs,
                        prepared + i * row_bytes);
    team_->for_each(view.tiles + more.tiles, 8, [&](int64_t first, int64_t last) {
      linear_of_both(*kernels_, view, more, prepared, n, static_cast<int>(first), static_cast<int>(last),
                     y + static_cast<size_t>(begin) * ldy + first * kTile, ldy);
    });
  }
}

}  // namespace forerun
