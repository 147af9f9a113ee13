// Vector operations in plain C++ and the four-lane vectors of GCC and Clang, which any processor can do: the reference for
// every other instruction set, and what runs where none fits.
//
// The interface (the same names in every header of this folder):
//   vf   16 floats, vi   16 int32
//   w8, w4   16 outputs x 4 inputs of signed 8-bit weights, of weights 0..15, as dot4 wants them
//   vb       16 outputs x 2 inputs of bf16 weights, as dot2 wants them; xb  two inputs, the same for all 16 outputs
//   vw       16 outputs x 2 inputs in 8 bits, as dot_words wants them
// Every operation works lane by lane (hsum and hmax apart, whose order is fixed), so a lane's bits do not depend on
// its neighbours. Compiled without contraction or fast-math: what is written is what is computed.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "simd/half.h"

namespace forerun {
namespace FORERUN_ISA {

static constexpr int kLanes = 16;
static constexpr bool kBf16Rows = false;  // inputs of bf16 weights stay in f32
static constexpr int kRegisters = 8;      // vf values worth keeping in registers at once

struct vf {
  float v[16];
};
struct vi {
  int32_t v[16];
};

#define FORERUN_LANES for (int i = 0; i < 16; i++)

// What the linear layers' sums are made of goes by four lanes at a time: of loops over 16, compilers keep some in registers
// and others in memory, at up to six times the cost.
typedef float f4 __attribute__((vector_size(16)));
typedef uint32_t u4 __attribute__((vector_size(16)));
#define FORERUN_QUARTERS _Pragma("GCC unroll 4") for (int i = 0; i < 16; i += 4)

template <class V, class T>
static inline V load4(const T* p) {
  V r;
  std::memcpy(&r, p, sizeof r);
  return r;
}
template <class V>
static inline void store4(float* p, V a) { std::memcpy(p, &a, sizeof a); }
static inline f4 quarter(const vf& a, int i) { return load4<f4>(a.v + i); }

static inline vf set1(float x) {
  vf r;
  FORERUN_QUARTERS store4(r.v + i, f4{x, x, x, x});
  return r;
}
static inline vf zero() { return set1(0.0f); }
static inline vf load(const float* p) {
  vf r;
  FORERUN_QUARTERS store4(r.v + i, load4<f4>(p + i));
  return r;
}
static inline void store(float* p, vf a) { FORERUN_QUARTERS store4(p + i, quarter(a, i)); }
static inline vf load_f16(const uint16_t* p) {
  vf r;
  FORERUN_LANES r.v[i] = f16_to_f32(p[i]);
  return r;
}
static inline vf load_bf16(const uint16_t* p) {
  vf r;
  FORERUN_LANES r.v[i] = bf16_to_f32(p[i]);
  return r;
}
static inline void store_f16(uint16_t* p, vf a) { FORERUN_LANES p[i] = f32_to_f16(a.v[i]); }
static inline void store_bf16(uint16_t* p, vf a) { FORERUN_LANES p[i] = f32_to_bf16(a.v[i]); }
static inline vf load_s8(const int8_t* p) {
  vf r;
  FORERUN_LANES r.v[i] = float(p[i]);
  return r;
}

static inline vf add(vf a, vf b) {
  FORERUN_QUARTERS store4(a.v + i, quarter(a, i) + quarter(b, i));
  return a;
}
static inline vf sub(vf a, vf b) {
  FORERUN_QUARTERS store4(a.v + i, quarter(a, i) - quarter(b, i));
  return a;
}
static inline vf mul(vf a, vf b) {
  FORERUN_QUARTERS store4(a.v + i, quarter(a, i) * quarter(b, i));
  return a;
}
static inline vf div(vf a, vf b) {
  FORERUN_QUARTERS store4(a.v + i, quarter(a, i) / quarter(b, i));
  return a;
}
// a*b+c, with one rounding where the set has a fused instruction
static inline vf fma(vf a, vf b, vf c) {
  FORERUN_QUARTERS store4(c.v + i, quarter(c, i) + quarter(a, i) * quarter(b, i));
  return c;
}
static inline vf max(vf a, vf b) {
  FORERUN_LANES a.v[i] = a.v[i] > b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline vf min(vf a, vf b) {
  FORERUN_LANES a.v[i] = a.v[i] < b.v[i] ? a.v[i] : b.v[i];
  return a;
}
static inline vf abs(vf a) {
  FORERUN_LANES a.v[i] = std::fabs(a.v[i]);
  return a;
}
static inline vf round_even(vf a) {
  FORERUN_LANES a.v[i] = std::nearbyint(a.v[i]);
  return a;
}
// a * 2^n for integral n in [-252, 254], exact but for the final rounding
static inline vf scale2(vf a, vf n) {
  FORERUN_LANES {
    int32_t e = int32_t(n.v[i]), h = e / 2;
    a.v[i] = a.v[i] * bits_to_f32(uint32_t(h + 127) << 23) * bits_to_f32(uint32_t(e - h + 127) << 23);
  }
  return a;
}
// lanes n.. replaced by fill
static inline vf keep_first(vf a, int n, float fill) {
  FORERUN_LANES if (i >= n) a.v[i] = fill;
  return a;
}
// lane by lane: x where a < b, else y
static inline vf if_less(vf a, vf b, vf x, vf y) {
  FORERUN_LANES y.v[i] = a.v[i] < b.v[i] ? x.v[i] : y.v[i];
  return y;
}
static inline float hsum(vf a) {
  for (int w = 8; w > 0; w /= 2)
    for (int i = 0; i < w; i++) a.v[i] += a.v[i + w];
  return a.v[0];
}
static inline float hmax(vf a) {
  float m = a.v[0];
  FORERUN_LANES m = a.v[i] > m ? a.v[i] : m;
  return m;
}

static inline vi izero() {
  vi r;
  std::memset(r.v, 0, sizeof r.v);
  return r;
}
static inline vi iset1(int32_t x) {
  vi r;
  FORERUN_LANES r.v[i] = x;
  return r;
}
static inline vf to_float(vi a) {
  vf r;
  FORERUN_LANES r.v[i] = float(a.v[i]);
  return r;
}
// round to nearest even and saturate to [-127, 127]
static inline void store_s8(int8_t* p, vf a) {
  FORERUN_LANES {
    float r = std::nearbyint(a.v[i]);
    p[i] = int8_t(r > 127.0f ? 127.0f : r >= -127.0f ? r : -127.0f);  // NaN: -127
  }
}

// 8-bit weights: 16 outputs x 4 consecutive inputs, the four inputs of an output adjacent. Signed weights are stored with
// 128 added; where kBiased8 products take them as stored, and sums must start at -128 times the sum of the inputs.
// A sum of products, exact: begin_sum, then dot4 at most eight times with inputs in [-127, 127], then end_sum.
static constexpr bool kBiased8 = false;
static constexpr int kLockstep = 1;  // rows whose sums grow together
struct w8 {
  int8_t v[64];
};
struct w4 {
  uint8_t v[64];
};
static inline w8 load_w8(const uint8_t* p) {
  w8 r;
  for (int i = 0; i < 64; i++) r.v[i] = int8_t(p[i] - 128);
  return r;
}
// 64 bytes: four inputs in the low halves, the next four in the high ones
static inline void load_w4(const uint8_t* p, w4& low, w4& high) {
  for (int i = 0; i < 64; i++) {
    low.v[i] = p[i] & 15;
    high.v[i] = p[i] >> 4;
  }
}
template <class W>
static inline vi begin_sum(const W&, const int32_t* start) {
  return iset1(*start);
}
template <class W>
static inline vi dot4(vi sum, const W& w, const int8_t* x) {
  FORERUN_LANES for (int j = 0; j < 4; j++) sum.v[i] += int32_t(w.v[4 * i + j]) * x[j];
  return sum;
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }

// bits of the largest magnitude among both; NaN counts as larger than infinity
static inline int32_t top_magnitude(vf a, vf b) {
  int32_t top = 0;
  FORERUN_LANES {
    const int32_t x = int32_t(f32_to_bits(a.v[i]) & 0x7fffffffu), y = int32_t(f32_to_bits(b.v[i]) & 0x7fffffffu);
    top = x > top ? x : top;
    top = y > top ? y : top;
  }
  return top;
}
// sum of 16
static inline int32_t sum_s8(const int8_t* p) {
  int32_t sum = 0;
  FORERUN_LANES sum += p[i];
  return sum;
}

// bf16 weights: 16 outputs x 2 consecutive inputs, the two inputs of an output adjacent
struct vb {
  vf even, odd;
};
struct xb {
  float even, odd;
};
static inline vb load_pairs(const uint16_t* p) {
  vb r;
  FORERUN_QUARTERS {
    const u4 pairs = load4<u4>(p + 2 * i);
    store4(r.even.v + i, pairs << 16);
    store4(r.odd.v + i, pairs & 0xffff0000u);
  }
  return r;
}
// x: a prepared row (f32 here, as kBf16Rows says), k: index of the pair
static inline xb pair_of(const void* x, int k) {
  const float* f = static_cast<const float*>(x) + 2 * k;
  return {f[0], f[1]};
}
static inline vf dot2(vf acc, vb w, xb x) { return fma(w.odd, set1(x.odd), fma(w.even, set1(x.even), acc)); }
// 16 numbers as pairs 8 b .. 8 b + 7 where pair_of finds them.
static inline void store_pairs(float* p, int b, vf a) { store(p + b * kLanes, a); }

// 16 outputs x 2 inputs in 8 bits, the two inputs of an output adjacent; their exact products with 16-bit numbers.
struct vw {
  int8_t v[32];
};
static inline vw load_words(const int8_t* p) {
  vw r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
// x: two 16-bit numbers, the same for all outputs
static inline vi dot_words(vi sum, vw w, const void* x) {
  int16_t two[2];
  std::memcpy(two, x, sizeof two);
  FORERUN_LANES sum.v[i] += int32_t(w.v[2 * i]) * two[0] + int32_t(w.v[2 * i + 1]) * two[1];
  return sum;
}
// round to nearest even, for numbers that become at most 32767 in magnitude or hardly more; NaN gives any number
static inline void store_words(void* p, vf a) {
  int16_t r[16];
  FORERUN_LANES {
    const float x = std::nearbyint(a.v[i]);
    r[i] = int16_t(x > 32767.0f ? 32767.0f : x >= -32767.0f ? x : -32767.0f);
  }
  std::memcpy(p, r, sizeof r);
}
// of any kind of memory
static inline vi load_int(const void* p) {
  vi r;
  std::memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store_int(void* p, vi a) { std::memcpy(p, a.v, sizeof a.v); }

}  // namespace FORERUN_ISA
}  // namespace forerun
