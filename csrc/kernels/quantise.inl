// Floats to integers in groups, when weights are packed. Included once per instruction set, after its simd header.
//
// Each lane is one output's group, and does what a plain loop over its weights would, in the same order: so all sets give
// the same bits. csrc/tests/test_quantise.cpp has that loop.
#include "kernels/kernels.h"

namespace forerun {
namespace FORERUN_ISA {
namespace quantise {

// Weights in units of a scale, from an offset on; of a scale of zero, none.
struct Line {
  vf scale, inverse, offset;
};
static inline Line line_of(vf scale, vf offset) {
  const vf least = set1(1.4e-45f), none = zero();
  return {scale, if_less(abs(scale), least, none, div(set1(1.0f), scale)), offset};
}

struct Bounds {
  float lowest, highest;
};
static constexpr Bounds kQ4{-8.0f, 7.0f}, kQ8{-127.0f, 127.0f};

// The whole number next to x, ties to even, within the bounds; the lowest for what is not a number.
static inline vf nearest(vf x, Bounds bounds) {
  const vf whole = set1(12582912.0f);  // 1.5 * 2^23: floats of its size are whole
  return sub(add(min(max(x, set1(bounds.lowest)), set1(bounds.highest)), whole), whole);
}
static inline vf code(vf x, const Line& line, Bounds bounds) { return nearest(mul(sub(x, line.offset), line.inverse), bounds); }

// The sum of term(k) over k < n: what does not fill eight, then each eighth, one after another.
template <class Term>
static inline __attribute__((always_inline)) vf sum_of(int n, const Term& term) {
  const int whole = n / 8 * 8;
  vf sum = zero();
  for (int k = whole; k < n; k++) sum = add(sum, term(k));
  if (whole == 0) return sum;
  for (int j = 0; j < 8; j++) {
    vf part = term(j);
    for (int k = j + 8; k < whole; k += 8) part = add(part, term(k));
    sum = add(sum, part);
  }
  return sum;
}

// A group of a tile, weight by weight.
struct Group {
  alignas(64) float x[kGroup * kTile];
  vf operator[](int k) const { return load(x + k * kTile); }
};
static inline __attribute__((always_inline)) void gather(const float* x, size_t stride, int n, Group& group) {
  for (int i = 0; i < kTile; i++)
    for (int k = 0; k < n; k++) group.x[k * kTile + i] = x[i * stride + k];
}
static inline __attribute__((always_inline)) void scatter(const Group& group, int n, const Line& line, Bounds bounds, int8_t* q, size_t stride) {
  alignas(64) int8_t codes[kGroup * kTile];
  for (int k = 0; k < n; k++) store_s8(codes + k * kTile, code(group[k], line, bounds));
  for (int i = 0; i < kTile; i++)
    for (int k = 0; k < n; k++) q[i * stride + k] = codes[k * kTile + i];
}

// The squared error.
static inline __attribute__((always_inline)) vf error_of(const Group& x, int n, const Line& line, Bounds bounds) {
  return sum_of(n, [&](int k) {
    const vf d = sub(add(mul(line.scale, code(x[k], line, bounds)), line.offset), x[k]);
    return mul(d, d);
  });
}

// Sums over the codes q. Those of q and of its squares are of whole numbers below 2^24, and exact in any order.
struct Sums {
  vf q, qq, xq;
};
static inline __attribute__((always_inline)) Sums sums_of(const Group& x, int n, const Line& line, Bounds bounds) {
  Sums sums{zero(), zero(), zero()};
  sums.xq = sum_of(n, [&](int k) {
    const vf q = code(x[k], line, bounds);
    sums.q = add(sums.q, q);
    sums.qq = fma(q, q, sums.qq);
    return mul(x[k], q);
  });
  return sums;
}

// What the layout can store, in multiples of `unit`, a power of two: scales as f16, offsets as bf16.
static inline vf as_scale(vf x, float unit) {
  uint16_t stored[kLanes];
  store_f16(stored, mul(x, set1(1.0f / unit)));
  return mul(load_f16(stored), set1(unit));
}
static inline vf as_offset(vf x, float unit) {
  alignas(64) float stored[kLanes];
  store(stored, mul(x, set1(1.0f / unit)));
  for (int i = 0; i < kLanes; i++) stored[i] = bf16_to_f32(f32_to_bf16(stored[i]));  // store_bf16 may take denormals as zeros
  return mul(load(stored), set1(unit));
}

static inline __attribute__((always_inline)) Line best_q4(const Group& x, int n, float unit) {
  vf low = x[0], high = x[0];
  for (int k = 1; k < n; k++) {
    low = min(x[k], low);
    high = max(x[k], high);
  }
  const vf widest = div(sub(high, low), set1(15.0f)), count = set1(static_cast<float>(n));
  Line best = line_of(as_scale(widest, unit), as_offset(add(low, mul(set1(8.0f), widest)), unit));
  vf error = if_less(low, high, error_of(x, n, best, kQ4), zero());  // nothing is better where all are the same
  const vf sx = sum_of(n, [&](int k) { return x[k]; });
  // Ranges a little narrower or wider than min .. max; for the codes of each, the best scale and offset in closed form.
  for (int step = -3; step <= 6; step++) {
    const vf start = mul(widest, set1(15.0f / (15.0f + 0.25f * static_cast<float>(step))));
    const Sums sums = sums_of(x, n, line_of(start, mul(add(add(low, high), start), set1(0.5f))), kQ4);
    const vf determinant = sub(mul(count, sums.qq), mul(sums.q, sums.q));
    const Line line = line_of(as_scale(div(sub(mul(count, sums.xq), mul(sums.q, sx)), determinant), unit),
                              as_offset(div(sub(mul(sums.qq, sx), mul(sums.q, sums.xq)), determinant), unit));
    const vf found = if_less(zero(), determinant, error_of(x, n, line, kQ4), set1(__builtin_inff()));
    best.scale = if_less(found, error, line.scale, best.scale);
    best.offset = if_less(found, error, line.offset, best.offset);
    error = min(found, error);
  }
  return line_of(best.scale, best.offset);
}

static inline __attribute__((always_inline)) Line best_q8(const Group& x, int n, float unit) {
  vf top = zero();
  for (int k = 0; k < n; k++) top = max(abs(x[k]), top);
  const Line first = line_of(as_scale(div(top, set1(127.0f)), unit), zero());
  const Sums sums = sums_of(x, n, first, kQ8);
  const Line line = line_of(as_scale(div(sums.xq, sums.qq), unit), zero());
  const vf error = error_of(x, n, first, kQ8);
  const vf found = if_less(zero(), sums.qq, error_of(x, n, line, kQ8), set1(__builtin_inff()));
  return line_of(if_less(found, error, line.scale, first.scale), zero());
}

static inline __attribute__((always_inline)) void q4(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale, float* offset) {
  Group group{};  // zeros: the compiler does not know that n > 0
  gather(x, stride, n, group);
  const Line line = best_q4(group, n, unit);
  store(scale, line.scale);
  store(offset, line.offset);
  scatter(group, n, line, kQ4, q, stride);
}

static inline __attribute__((always_inline)) void q8(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale) {
  Group group{};  // zeros: the compiler does not know that n > 0
  gather(x, stride, n, group);
  const Line line = best_q8(group, n, unit);
  store(scale, line.scale);
  scatter(group, n, line, kQ8, q, stride);
}

}  // namespace quantise

// Compiled for whole groups, whose size is a constant, and for others.
static void quantise_q4(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale, float* offset) {
  if (n == kGroup) quantise::q4(x, q, stride, kGroup, unit, scale, offset);
  else quantise::q4(x, q, stride, n, unit, scale, offset);
}
static void quantise_q8(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale) {
  if (n == kGroup) quantise::q8(x, q, stride, kGroup, unit, scale);
  else quantise::q8(x, q, stride, n, unit, scale);
}

}  // namespace FORERUN_ISA
}  // namespace forerun
