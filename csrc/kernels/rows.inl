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
  const size_t pairs = static_cast<size_t>(pairs_of(inputs));
  if (kind == RowKind::q8) return (pairs * sizeof(RowPair) + (2 * pairs + 1) * sizeof(RestGroup) + 63) / 64 * 64;
  const size_t padded = static_cast<size_t>((inputs + kGroup - 1) / kGroup) * kGroup;
  return padded * (kind == RowKind::bf16 ? 2 : 4);
}

// --- 8 bits ----------------------------------------------------------------------------------------------------------

// Inputs in units of a scale, given with its inverse; returns the sum of what they became.
static inline float keep_group(vf low, vf high, float scale, float inverse, RowGroup& kept) {
  store_s8(kept.q, mul(low, set1(inverse)));
  store_s8(kept.q + kLanes, mul(high, set1(inverse)));
  const int32_t sums[2] = {sum_s8(kept.q), sum_s8(kept.q + kLanes)};
  const int32_t bias = kBiased8 ? -128 : 0;
  kept.scale = scale;
  kept.start4 = -8 * (sums[0] + sums[1]);
  kept.start8 = bias * (sums[0] + sums[1]);
  for (int h = 0; h < 2; h++) kept.start8_half[h] = bias * sums[h];
  return static_cast<float>(sums[0] + sums[1]) * scale;
}

static inline void keep_sum(float sum, RowPair& pair, int g) {
  if (kBf16Rows) pair.sum.bf16[g] = f32_to_bf16(sum);
  else pair.sum.f32[g] = sum;
}

// Eight bits with the scale that just holds the group. Anything that is not finite makes the whole group NaN.
static inline void quantise_group(vf low, vf high, RowPair& pair, int g) {
  const float top = bits_to_f32(static_cast<uint32_t>(top_magnitude(low, high)));
  const bool finite = top < 1e36f;
  const float held = finite && top > 1e-30f ? top : 1e-30f;
  keep_sum(keep_group(low, high, finite ? held / 127.0f : __builtin_nanf(""), 127.0f / held, pair.group[g]), pair, g);
}

// A group of inputs, with zeros behind the row's end.
struct Halves {
  vf low, high;
};
static inline Halves load_group(const float* x, int left) {
  if (left >= kGroup) return {load(x), load(x + kLanes)};
  alignas(64) float padded[kGroup] = {};
  for (int i = 0; i < left; i++) padded[i] = x[i];
  return {load(padded), load(padded + kLanes)};
}

// Outliers make their groups coarse, and what is lost there is most of what a row loses: groups of more than twice the mean
// scale get eight bits more, for what the first eight leave over.
static void refine(const float* x, int inputs, void* row) {
  RowPair* pairs = static_cast<RowPair*>(row);
  RestGroup* rest = rest_of(row, inputs);
  const int groups = (inputs + kGroup - 1) / kGroup;
  float sum = 0.0f;
  for (int i = 0; i < pairs_of(inputs); i++) sum += pairs[i].group[0].scale + pairs[i].group[1].scale;
  const float coarse = 2.0f * sum / static_cast<float>(groups);
  for (int g = 0; g < groups; g++) {
    const RowGroup& kept = pairs[g / 2].group[g % 2];
    const float scale = kept.scale;
    if (!(scale > coarse)) continue;
    const Halves all = load_group(x + g * kGroup, inputs - g * kGroup);
    const vf low = sub(all.low, mul(load_s8(kept.q), set1(scale))), high = sub(all.high, mul(load_s8(kept.q + kLanes), set1(scale)));
    const float more = keep_group(low, high, scale / 254.0f, 254.0f / scale, rest->kept);
    keep_sum(static_cast<float>(kept.start4 / -8) * scale + more, pairs[g / 2], g % 2);
    rest++->group = g;
  }
  rest->group = -1;
}

// --- all kinds -------------------------------------------------------------------------------------------------------

static void prepare(RowKind kind, const float* x, int inputs, int begin, int end, void* row) {
  const int groups = (inputs + kGroup - 1) / kGroup;
  for (int g = begin / kGroup; g * kGroup < end; g++, x += kGroup) {
    const auto [low, high] = load_group(x, end - g * kGroup);
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
  if (kind != RowKind::q8 || end < inputs) return;
  if (groups % 2) quantise_group(zero(), zero(), static_cast<RowPair*>(row)[groups / 2], 1);
  rest_of(row, inputs)->group = -1;
}

}  // namespace FORERUN_ISA
}  // namespace forerun
