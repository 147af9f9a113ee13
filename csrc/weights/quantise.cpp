#include "weights/quantise.h"

#include <cmath>

#include "simd/half.h"

namespace forerun {

namespace {

constexpr int kMost = 32, kSums = 8;  // sums in so many parts, for vectors

// Sums term(i) over i < n.
template <class Term>
inline float sum_of(int n, const Term& term) {
  float parts[kSums] = {}, sum = 0.0f;
  int i = 0;
  for (; i + kSums <= n; i += kSums)
    for (int j = 0; j < kSums; j++) parts[j] += term(i + j);
  for (; i < n; i++) sum += term(i);
  for (float part : parts) sum += part;
  return sum;
}

// The whole number next to x, ties to even, within the bounds; the lowest for what is not a number.
float nearest(float x, float lowest, float highest) {
  constexpr float kWhole = 12582912.0f;  // 1.5 * 2^23: floats of its size are whole
  const float above = x > lowest ? x : lowest, held = above < highest ? above : highest;
  return held + kWhole - kWhole;
}

// Codes for a scale and offset; returns the squared error.
inline float encode(const float* x, int n, float scale, float offset, float lowest, float highest, float* q) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < n; i++) q[i] = nearest((x[i] - offset) * inverse, lowest, highest);
  return sum_of(n, [&](int i) {
    const float d = scale * q[i] + offset - x[i];
    return d * d;
  });
}

void keep(const float* codes, int n, int8_t* q) {
  for (int i = 0; i < n; i++) q[i] = static_cast<int8_t>(codes[i]);
}

// quantise_q4, to be compiled for whole groups, whose n is a constant, and for others: that takes half the time.
__attribute__((always_inline)) inline void best_q4(const float* x, int n, Rounding rounding, int8_t* q, float* scale, float* offset) {
  float low = x[0], high = x[0];
  for (int i = 1; i < n; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const float widest = (high - low) / 15.0f;
  *scale = rounding.scale(widest);
  *offset = rounding.offset(low + 8.0f * widest);
  float codes[kMost];
  float error = encode(x, n, *scale, *offset, -8.0f, 7.0f, codes);
  keep(codes, n, q);
  if (!(high > low)) return;
  const float sx = sum_of(n, [&](int i) { return x[i]; });
  // Ranges a little narrower or wider than min .. max; for the codes of each, the best scale and offset in closed form.
  for (int step = -3; step <= 6; step++) {
    const float start = widest * (15.0f / (15.0f + 0.25f * float(step)));
    encode(x, n, start, (low + high + start) * 0.5f, -8.0f, 7.0f, codes);
    const float sq = sum_of(n, [&](int i) { return codes[i]; }), sqq = sum_of(n, [&](int i) { return codes[i] * codes[i]; });
    const float sxq = sum_of(n, [&](int i) { return x[i] * codes[i]; });
    const float determinant = float(n) * sqq - sq * sq;
    if (!(determinant > 0.0f)) continue;
    const float s = rounding.scale((float(n) * sxq - sq * sx) / determinant);
    const float o = rounding.offset((sqq * sx - sq * sxq) / determinant);
    const float e = encode(x, n, s, o, -8.0f, 7.0f, codes);
    if (!(e < error)) continue;
    error = e;
    *scale = s;
    *offset = o;
    keep(codes, n, q);
  }
}

}  // namespace

float Rounding::scale(float x) const { return f16_to_f32(f32_to_f16(x / unit)) * unit; }
float Rounding::offset(float x) const { return bf16_to_f32(f32_to_bf16(x / unit)) * unit; }

void quantise_q8(const float* x, int n, Rounding rounding, int8_t* q, float* scale) {
  float top = 0.0f, codes[kMost], better[kMost];
  for (int i = 0; i < n; i++) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;
  *scale = rounding.scale(top / 127.0f);
  const float error = encode(x, n, *scale, 0.0f, -127.0f, 127.0f, codes);
  keep(codes, n, q);
  const float xq = sum_of(n, [&](int i) { return x[i] * codes[i]; }), qq = sum_of(n, [&](int i) { return codes[i] * codes[i]; });
  if (!(qq > 0.0f)) return;
  const float refined = rounding.scale(xq / qq);
  if (encode(x, n, refined, 0.0f, -127.0f, 127.0f, better) >= error) return;
  *scale = refined;
  keep(better, n, q);
}

void quantise_q4(const float* x, int n, Rounding rounding, int8_t* q, float* scale, float* offset) {
  if (n == kMost) best_q4(x, kMost, rounding, q, scale, offset);
  else best_q4(x, n, rounding, q, scale, offset);
}

}  // namespace forerun
