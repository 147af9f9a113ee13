// The layouts that packing and kernels agree on. docs/kernels.md tells why they are so.
#pragma once
#include "kernels/kernels.h"

namespace forerun {

// A group of inputs prepared for 8-bit products.
struct RowGroup {
  int8_t q[kGroup];       // inputs in units of the scale, in [-127, 127]
  float scale;
  int32_t start4;         // less 8 times the sum of q: 4-bit weights are stored with 8 added
  int32_t start8;         // less 128 times the sum of q where weights are stored with 128 added, else 0
  int32_t start8_half[2]; // the same for each half of the group
};

// A row is its groups two by two, then what the first eight bits of refined groups left over, and one that is none behind them.
// An odd number of groups is made even by one of zeros.
struct RowPair {
  RowGroup group[2];
  union {
    float f32[2];  // the sums of the groups' inputs, which multiply offsets,
    uint16_t bf16[4];  // in the first two of these where the instruction set takes them so
  } sum;
};
struct RestGroup {
  RowGroup kept;
  int32_t group;  // whose rest; -1: none
};
static_assert(sizeof(RowPair) == 112 && sizeof(RestGroup) == 56);

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
static inline RestGroup* rest_of(void* row, int inputs) { return reinterpret_cast<RestGroup*>(static_cast<RowPair*>(row) + pairs_of(inputs)); }
static inline const RestGroup* rest_of(const void* row, int inputs) {
  return reinterpret_cast<const RestGroup*>(static_cast<const RowPair*>(row) + pairs_of(inputs));
}

}  // namespace forerun
