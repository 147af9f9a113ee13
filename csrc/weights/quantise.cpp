#include "weights/quantise.h"

#include <cmath>

#include "simd/half.h"

namespace forerun {

namespace {

int8_t nearest(float x, float lowest, float highest) {
  const float r = std::nearbyint(x);
  return int8_t(r >= lowest ? (r <= highest ? r : highest) : lowest);  // NaN: lowest
}

// Codes for a scale and offset; returns the squared error.
float encode(const float* x, int n, float scale, float offset, float lowest, float highest, int8_t* q) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  float error = 0.0f;
  for (int i = 0; i < n; i++) {
    q[i] = nearest((x[i] - offset) * inverse, lowest, highest);
    const float d = scale * float(q[i]) + offset - x[i];
    error += d * d;
  }
  return error;
}

}  // namespace

float Rounding::scale(float x) const { return f16_to_f32(f32_to_f16(x / unit)) * unit; }
float Rounding::offset(float x) const { return bf16_to_f32(f32_to_bf16(x / unit)) * unit; }

void quantise_q8(const float* x, int n, Rounding rounding, int8_t* q, float* scale) {
  float top = 0.0f;
  for (int i = 0; i < n; i++) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;
  *scale = rounding.scale(top / 127.0f);
  const float error = encode(x, n, *scale, 0.0f, -127.0f, 127.0f, q);
  float xq = 0.0f, qq = 0.0f;
  for (int i = 0; i < n; i++) {
    xq += x[i] * float(q[i]);
    qq += float(q[i]) * float(q[i]);
  }
  if (!(qq > 0.0f)) return;
  int8_t better[32];
  const float refined = rounding.scale(xq / qq);
  if (encode(x, n, refined, 0.0f, -127.0f, 127.0f, better) >= error) return;
  *scale = refined;
  for (int i = 0; i < n; i++) q[i] = better[i];
}

void quantise_q4(const float* x, int n, Rounding rounding, int8_t* q, float* scale, float* offset) {
  float low = x[0], high = x[0];
  for (int i = 1; i < n; i++) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const float widest = (high - low) / 15.0f;
  *scale = rounding.scale(widest);
  *offset = rounding.offset(low + 8.0f * widest);
  float error = encode(x, n, *scale, *offset, -8.0f, 7.0f, q);
  if (!(high > low)) return;
  // Ranges a little narrower or wider than min .. max; for the codes of each, the best scale and offset in closed form.
  for (int step = -3; step <= 6; step++) {
    const float start = widest * (15.0f / (15.0f + 0.25f * float(step)));
    int8_t codes[32];
    encode(x, n, start, (low + high + start) * 0.5f, -8.0f, 7.0f, codes);
    float sq = 0.0f, sqq = 0.0f, sx = 0.0f, sxq = 0.0f;
    for (int i = 0; i < n; i++) {
      const float c = float(codes[i]);
      sq += c;
      sqq += c * c;
      sx += x[i];
      sxq += x[i] * c;
    }
    const float determinant = float(n) * sqq - sq * sq;
    if (!(determinant > 0.0f)) continue;
    const float s = rounding.scale((float(n) * sxq - sq * sx) / determinant);
    const float o = rounding.offset((sqq * sx - sq * sxq) / determinant);
    const float e = encode(x, n, s, o, -8.0f, 7.0f, codes);
    if (!(e < error)) continue;
    error = e;
    *scale = s;
    *offset = o;
    for (int i = 0; i < n; i++) q[i] = codes[i];
  }
}

}  // namespace forerun
