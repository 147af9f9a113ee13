// An output layer in two parts: a layer's tiles, and those of another one of the same inputs and format behind them.
#pragma once
#include <algorithm>

#include "kernels/kernels.h"

namespace forerun {

// As Kernels::linear, over tiles that count on from the first to the second.
inline void linear_of_both(const Kernels& kernels, const Linear& first, const Linear& second, const void* rows, int n, int begin, int end,
                           float* y, size_t ldy) {
  const int middle = std::clamp(first.tiles, begin, end);
  if (begin < middle) kernels.linear(first, rows, n, begin, middle, y, ldy);
  if (middle < end) kernels.linear(second, rows, n, middle - first.tiles, end - first.tiles, y + static_cast<size_t>(middle - begin) * kTile, ldy);
}

}  // namespace forerun
