// Rows of inputs, prepared for linear layers. Included once per instruction set, after its simd header.
#include "kernels/kernels.h"
#include "kernels/layout.h"

namespace forerun {
namespace FORERUN_ISA {

static RowKind row_kind(Format format) {
  if (format == Format::q8 || format == Format::q4) return RowKind::q8;
  return format == Format::bf16 && kBf16Rows ? RowKind::bf16 : RowKind::f32;
}

static size_t row_bytes(RowKind kind, int inputs) {
  if (kind == RowKind::q8) return (static_cast<size_t>(pairs_of(inputs)) * sizeof(RowPair) + 63) / 64 * 64;
  const size_t padded = static_cast<size_t>((inputs + kGroup - 1) / kGroup) * kGroup;
  return padded * (kind == RowKind::bf16 ? 2 : 4);
}

// --- 8 bits ----------------------------------------------------------------------------------------------------------

// Eight bits with the scale that just holds the group. Anything that is not finite makes the whole group NaN.
static inline void quantise_group(vf low, vf high, RowPair& pair, int g) {
  const float top = bits_to_f32(static_cast<uint32_t>(top_magnitude(low, high)));
  const bool finite = top < 1e36f;
  const float held = finite && top > 1e-30f ? top : 1e-30f;
  const vf inverse = set1(127.0f / held);
  int8_t* q = pair.q[g];
  store_s8(q, mul(low, inverse));
  store_s8(q + kLanes, mul(high, inverse));
  const int32_t sums[2] = {sum_s8(q), sum_s8(q + kLanes)};
  const int32_t bias = kBiased8 ? -128 : 0;
  pair.scale[g] = finite ? held / 127.0f : __builtin_nanf("");
  pair.start4[g] = -8 * (sums[0] + sums[1]);
  pair.start8[g] = bias * (sums[0] + sums[1]);
  for (int h = 0; h < 2; h++) pair.start8_half[g][h] = bias * sums[h];
  const float sum = static_cast<float>(sums[0] + sums[1]) * pair.scale[g];
  if (kBf16Rows) pair.sum.bf16[g] = f32_to_bf16(sum);
  else pair.sum.f32[g] = sum;
}

// --- all kinds -------------------------------------------------------------------------------------------------------

static void prepare(RowKind kind, const float* x, int inputs, int begin, int end, void* row) {
  const int groups = (inputs + kGroup - 1) / kGroup;
  for (int g = begin / kGroup; g * kGroup < end; g++, x += kGroup) {
    alignas(64) float padded[kGroup] = {};
    const float* from = x;
    if (end - g * kGroup < kGroup) {
      for (int i = 0; i < end - g * kGroup; i++) padded[i] = x[i];
      from = padded;
    }
    const vf low = load(from), high = load(from + kLanes);
    if (kind == RowKind::q8) {
      quantise_group(low, high, static_cast<RowPair*>(row)[g / 2], g % 2);
    } else if (kind == RowKind::bf16) {
      store_bf16(static_cast<uint16_t*>(row) + g * kGroup, low);
      store_bf16(static_cast<uint16_t*>(row) + g * kGroup + kLanes, high);
    } else {
      store(static_cast<float*>(row) + g * kGroup, low);
      store(static_cast<float*>(row) + g * kGroup + kLanes, high);
    }
  }
  if (kind == RowKind::q8 && end == inputs && groups % 2) quantise_group(zero(), zero(), static_cast<RowPair*>(row)[groups / 2], 1);
}

}  // namespace FORERUN_ISA
}  // namespace forerun
