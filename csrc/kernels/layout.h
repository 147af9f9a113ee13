// The layouts that packing and kernels agree on.
#pragma once
#include "kernels/kernels.h"

namespace forerun {

// A group of prepared inputs for 8-bit products.
struct alignas(64) RowGroup {
  int8_t q[kGroup];        // inputs in units of scale, in [-127, 127]
  float scale;
  float weighted;          // scale times the sum of q: what multiplies a minimum
  int32_t start4;          // -8 times the sum of q: where sums of products with symmetric 4-bit weights start
  int32_t start8;          // the same for 8-bit weights, as the instruction set wants it
  int32_t start8_half[2];  // for each half of the group
};
static_assert(sizeof(RowGroup) == 64);

// Bytes of a group of a tile of quantised weights: the weights, then f16 scales of the 16 outputs (of each half if there
// are halves), then f16 minima if there are any.
static constexpr size_t group_bytes(Format format, bool has_min, int group) {
  return (format == Format::q8 ? kGroup : kGroup / 2) * kTile + 2 * kTile * (has_min || group != kGroup ? 2 : 1);
}

}  // namespace forerun
