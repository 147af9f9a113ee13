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
  if (kind == RowKind::q8) return static_cast<size_t>(pairs_of(inputs)) * 2 * sizeof(RowGroup);
  const size_t padded = static_cast<size_t>((inputs + kGroup - 1) / kGroup) * kGroup;
  return padded * (kind == RowKind::bf16 ? 2 : 4);
}

// --- 8 bits ----------------------------------------------------------------------------------------------------------

// Scales are numbered: scale kVariants * e + v is 2^e * kSteps[v].
static constexpr float kSteps[kVariants] = {1.0f, 1.18920712f, 1.41421356f, 1.68179283f};
static constexpr float kInverseSteps[kVariants] = {1.0f, 0.84089642f, 0.70710678f, 0.59460356f};

static inline float power_of_two_at(int e) { return bits_to_f32(static_cast<uint32_t>(127 + e) << 23); }

// The number of the smallest scale that is at least x > 0.
static inline int scale_number(float x) {
  const uint32_t bits = f32_to_bits(x);
  const float m = bits_to_f32((bits & 0x7fffffu) | 0x3f800000u);
  int v = m > 1.0f;
  for (int i = 1; i < kVariants; i++) v += m > kSteps[i];
  return (static_cast<int>(bits >> 23) - 127) * kVariants + v;
}

// The four neighbouring inputs with the largest magnitude, and the largest magnitude outside them.
struct Extremes {
  float top, second;
  int quad;
};
static inline Extremes extremes(vf low, vf high) {
  int32_t tops[2 * kLanes];
  quad_tops(low, tops);
  quad_tops(high, tops + kLanes);
  int32_t top = tops[0], second = 0;
  int quad = 0;
  for (int i = 1; i < kGroup / 4; i++) {
    const int32_t t = tops[4 * i], loser = t > top ? top : t;
    second = loser > second ? loser : second;
    quad = t > top ? i : quad;
    top = t > top ? t : top;
  }
  return {bits_to_f32(static_cast<uint32_t>(top)), bits_to_f32(static_cast<uint32_t>(second)), quad};
}

// Eight bits with the smallest scale that holds the group. Where one quad sticks out, as activations' outliers do, it is
// given twice the range, the excess being added in an extra step, if that makes the scale finer by half a power of two.
// Anything that is not finite makes the whole group NaN.
static inline void quantise_group(vf low, vf high, RowGroup* groups, int g) {
  RowGroup& group = groups[g];
  const Extremes e = extremes(low, high);
  const bool finite = e.top < 1e29f;
  const float top = e.top > 1e-28f ? e.top : 1e-28f, second = e.second > 0.5f * top ? e.second : 0.5f * top;
  int number = finite ? scale_number(top * (1.0f / 127.0f)) : 0;
  const int finer = finite ? scale_number(second * (1.0f / 127.0f)) : 0;
  group.has_extra = number - finer > kVariants / 2;
  if (group.has_extra) number = finer;
  const int exponent = number >> kVariantBits, variant = number & (kVariants - 1);
  const float power = power_of_two_at(exponent), inverse = kInverseSteps[variant] * power_of_two_at(-exponent);
  const vf scaled_low = mul(low, set1(inverse)), scaled_high = mul(high, set1(inverse));
  store_s8(group.q, scaled_low);
  store_s8(group.q + kLanes, scaled_high);
  int32_t sums[2] = {sum_s8(group.q), sum_s8(group.q + kLanes)};
  group.quad = static_cast<uint8_t>(e.quad);
  if (group.has_extra) {
    alignas(64) float scaled[kGroup];
    store(scaled, scaled_low);
    store(scaled + kLanes, scaled_high);
    for (int i = 0; i < 4; i++) {
      const int at = 4 * e.quad + i;
      group.extra[i] = static_cast<int8_t>(static_cast<int>(__builtin_rintf(scaled[at])) - group.q[at]);
      sums[at / kLanes] += group.extra[i];
    }
  }
  group.variant = static_cast<uint8_t>(variant);
  const int32_t base = static_cast<int32_t>(f32_to_bits(power * 12582912.0f));  // 1.5 * 2^23
  group.base = finite ? power * 12582912.0f : __builtin_nanf("");
  group.start4 = base - 8 * (sums[0] + sums[1]);
  group.start8 = base - (kBiased8 ? 128 * (sums[0] + sums[1]) : 0);
  for (int h = 0; h < 2; h++) group.start8_half[h] = base - (kBiased8 ? 128 * sums[h] : 0);
  const float sum = static_cast<float>(sums[0] + sums[1]) * kSteps[variant] * power;
  if (kBf16Rows) groups[g & ~1].sum.bf16[g & 1] = f32_to_bf16(sum);
  else group.sum.f32 = sum;
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
      quantise_group(low, high, static_cast<RowGroup*>(row), g);
    } else if (kind == RowKind::bf16) {
      store_bf16(static_cast<uint16_t*>(row) + g * kGroup, low);
      store_bf16(static_cast<uint16_t*>(row) + g * kGroup + kLanes, high);
    } else {
      store(static_cast<float*>(row) + g * kGroup, low);
      store(static_cast<float*>(row) + g * kGroup + kLanes, high);
    }
  }
  if (kind == RowKind::q8 && end == inputs && groups % 2) quantise_group(zero(), zero(), static_cast<RowGroup*>(row), groups);
}

}  // namespace FORERUN_ISA
}  // namespace forerun
