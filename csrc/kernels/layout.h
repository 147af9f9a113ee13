// The layouts that packing and kernels agree on. docs/kernels.md tells why they are so.
#pragma once
#include "kernels/kernels.h"

namespace forerun {

// Scales of inputs are powers of two and kVariants - 1 steps between one and the next.
constexpr int kVariantBits = 2, kVariants = 1 << kVariantBits;

// A group of inputs prepared for 8-bit products. Groups come in pairs.
struct alignas(64) RowGroup {
  int8_t q[kGroup];  // inputs in units of the group's scale 2^e * step, in [-127, 127]
  // Sums of integers become floats without a conversion: they start at the bits of `base`, a float whose last place is
  // worth 2^e, so that what has been added since is read off as (sum as a float) - base, exactly.
  float base;
  int32_t start4;          // bits of base, less 8 times the sum of q: 4-bit weights are stored with 8 added
  int32_t start8;          // bits of base, less 128 times the sum of q where weights are stored with 128 added
  int32_t start8_half[2];  // the same for each half of the group
  int8_t extra[4];         // what the four inputs of one quad are beyond q
  uint8_t has_extra, quad;
  uint8_t variant;         // which step
  union {
    float f32;         // the sum of the group's inputs,
    uint16_t bf16[2];  // or in the even group of a pair those of both: what multiplies offsets
  } sum;
};
static_assert(sizeof(RowGroup) == 64);

// A pair of groups in a tile of quantised weights, as offsets in bytes: the weights of both groups; f16 scales of 16
// outputs, for each group (and each half, if there are halves); bf16 offsets as load_pairs wants them, if there are any.
struct PairLayout {
  int group_weights, scales, scales_of_group, offsets, bytes;
};
static constexpr PairLayout pair_layout(Format format, bool has_min, int group) {
  PairLayout l{};
  l.group_weights = (format == Format::q8 ? kGroup : kGroup / 2) * kTile;
  l.scales = 2 * l.group_weights;
  l.scales_of_group = kGroup / group * kTile * 2;
  l.offsets = l.scales + 2 * l.scales_of_group;
  l.bytes = l.offsets + (has_min ? 2 * kTile * 2 : 0);
  return l;
}
static constexpr int pairs_of(int inputs) { return (inputs + 2 * kGroup - 1) / (2 * kGroup); }

}  // namespace forerun
