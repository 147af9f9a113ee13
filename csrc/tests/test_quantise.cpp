// Quantising a group of floats: every instruction set against a plain loop over one output's weights, bit for bit.
// Prints one line a failure and a summary; exits with 1 if anything failed.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "simd/half.h"
#include "tests/check.h"
#include "tests/reference.h"

using namespace forerun;

namespace {

Checks check;

// --- the plain loop --------------------------------------------------------------------------------------------------

struct Quantised {
  int8_t q[kGroup] = {};
  float scale = 0.0f, offset = 0.0f;
};

float as_scale(float x, float unit) { return f16_to_f32(f32_to_f16(x / unit)) * unit; }
float as_offset(float x, float unit) { return bf16_to_f32(f32_to_bf16(x / unit)) * unit; }

// Sums are of eight parts: weight k belongs to part k % 8; what does not fill eight comes before all parts.
template <class Term>
float sum_of(int n, const Term& term) {
  float parts[8] = {}, sum = 0.0f;
  const int whole = n / 8 * 8;
  for (int k = 0; k < whole; k++) parts[k % 8] += term(k);
  for (int k = whole; k < n; k++) sum += term(k);
  for (const float part : parts) sum += part;
  return sum;
}

// The codes of a scale and offset; returns the squared error.
float encode(const float* x, int n, float scale, float offset, float lowest, float highest, float* q) {
  const float inverse = scale != 0.0f ? 1.0f / scale : 0.0f;
  for (int k = 0; k < n; k++) {
    const float at = (x[k] - offset) * inverse;
    q[k] = std::nearbyint(at > lowest ? (at < highest ? at : highest) : lowest);
  }
  return sum_of(n, [&](int k) {
    const float d = scale * q[k] + offset - x[k];
    return d * d;
  });
}

// The best so far.
struct Best {
  Quantised kept;
  float error = 0.0f;
  bool any = false;

  // Takes a scale and offset if they are the first, or better than those before.
  void offer(const float* x, int n, float scale, float offset, float lowest, float highest) {
    float q[kGroup];
    const float its = encode(x, n, scale, offset, lowest, highest, q);
    if (any && !(its < error)) return;
    any = true;
    error = its;
    kept.scale = scale;
    kept.offset = offset;
    for (int k = 0; k < n; k++) kept.q[k] = static_cast<int8_t>(q[k]);
  }
};

Quantised plain_q4(const float* x, int n, float unit) {
  Best best;
  float low = x[0], high = x[0], q[kGroup];
  for (int k = 1; k < n; k++) {
    low = x[k] < low ? x[k] : low;
    high = x[k] > high ? x[k] : high;
  }
  const float widest = (high - low) / 15.0f;
  best.offer(x, n, as_scale(widest, unit), as_offset(low + 8.0f * widest, unit), -8.0f, 7.0f);
  if (low == high) return best.kept;
  const float sx = sum_of(n, [&](int k) { return x[k]; });
  for (int step = -3; step <= 6; step++) {
    const float start = widest * (15.0f / (15.0f + 0.25f * float(step)));
    encode(x, n, start, (low + high + start) * 0.5f, -8.0f, 7.0f, q);
    const float sq = sum_of(n, [&](int k) { return q[k]; }), sqq = sum_of(n, [&](int k) { return q[k] * q[k]; });
    const float sxq = sum_of(n, [&](int k) { return x[k] * q[k]; }), determinant = float(n) * sqq - sq * sq;
    if (!(determinant > 0.0f)) continue;
    const float scale = as_scale((float(n) * sxq - sq * sx) / determinant, unit);
    best.offer(x, n, scale, as_offset((sqq * sx - sq * sxq) / determinant, unit), -8.0f, 7.0f);
  }
  return best.kept;
}

Quantised plain_q8(const float* x, int n, float unit) {
  Best best;
  float top = 0.0f, q[kGroup];
  for (int k = 0; k < n; k++) top = std::fmax(top, std::fabs(x[k]));
  const float scale = as_scale(top / 127.0f, unit);
  best.offer(x, n, scale, 0.0f, -127.0f, 127.0f);
  encode(x, n, scale, 0.0f, -127.0f, 127.0f, q);
  const float xq = sum_of(n, [&](int k) { return x[k] * q[k]; }), qq = sum_of(n, [&](int k) { return q[k] * q[k]; });
  if (qq > 0.0f) best.offer(x, n, as_scale(xq / qq, unit), 0.0f, -127.0f, 127.0f);
  return best.kept;
}

// --- cases -----------------------------------------------------------------------------------------------------------

constexpr int kStride = 41;      // from one row to the next: more than a group
constexpr int8_t kUntouched = 99;  // no code of 4 bits, and what is written beyond a row would differ from it

// Weights of kTile rows that differ in kind: like a model's, far from zero, with outliers, all the same, none, tiny, mixed.
std::vector<float> weights(reference::Generator& random, float size) {
  std::vector<float> x(kTile * kStride);
  for (int i = 0; i < kTile; i++)
    for (int k = 0; k < kStride; k++) {
      const float w = size * random.normal();
      float& at = x[i * kStride + k];
      switch (i % 8) {
        case 0: at = w + 3.0f * size; break;
        case 1: at = k % 11 == i / 8 ? 40.0f * w : w; break;
        case 2: at = i < 8 ? size : -size; break;
        case 3: at = i < 8 ? 0.0f : -0.0f; break;
        case 4: at = i < 8 ? w * 1e-38f : w * 1e-7f; break;
        case 5: at = k % 2 ? w : 0.0f; break;
        case 6: at = bf16_to_f32(f32_to_bf16(w)); break;
        default: at = w;
      }
    }
  return x;
}

bool same_bits(float a, float b) { return f32_to_bits(a) == f32_to_bits(b); }

void test_group(const Kernels& kernels, bool four, const std::vector<float>& x, int n, float unit) {
  std::vector<int8_t> q(kTile * kStride, kUntouched);
  float scale[kTile], offset[kTile] = {};
  if (four) kernels.quantise_q4(x.data(), q.data(), kStride, n, unit, scale, offset);
  else kernels.quantise_q8(x.data(), q.data(), kStride, n, unit, scale);
  const std::string what = std::string(kernels.name) + (four ? ", q4" : ", q8") + ": " + std::to_string(n) + " weights, ";
  for (int i = 0; i < kTile; i++) {
    const float* row = x.data() + i * kStride;
    const Quantised wanted = four ? plain_q4(row, n, unit) : plain_q8(row, n, unit);
    check(same_bits(wanted.scale, scale[i]) && same_bits(wanted.offset, offset[i]), what + "scale and offset of row " + std::to_string(i));
    check(std::memcmp(wanted.q, q.data() + i * kStride, n) == 0, what + "codes of row " + std::to_string(i));
    for (int k = n; k < kStride; k++) check(q[i * kStride + k] == kUntouched, what + "nothing beyond row " + std::to_string(i));
  }
}

}  // namespace

int main() {
  const Kernels* tables[16];
  const int sets = available_kernels(tables, 16);
  reference::Generator random(11);
  for (int round = 0; round < 40; round++)
    for (const float size : {0.03f, 1.0f, 1e-30f, 1e18f}) {
      const std::vector<float> x = weights(random, size);
      const float unit = std::ldexp(1.0f, std::ilogb(size) + round % 3 * 4 - 12);
      for (const int n : {kGroup, 1 + round % kGroup})
        for (int s = 0; s < sets; s++)
          for (const bool four : {true, false}) test_group(*tables[s], four, x, n, unit);
    }
  return check.finish();
}
