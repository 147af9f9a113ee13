// Vector operations for 64-bit Arm; with the dot product instructions where the file is compiled for them.
// See portable.h for the interface. A vf is four registers; all of AArch64 has them, and f16 conversions.
#pragma once
#include <arm_neon.h>

#include "simd/half.h"

namespace forerun {
namespace FORERUN_ISA {

static constexpr int kLanes = 16;
static constexpr int kRegisters = 8;  // of 32, four to a vf
static constexpr bool kBf16Rows = false;

#define FORERUN_QUARTERS for (int i = 0; i < 4; i++)

struct vf {
  float32x4_t v[4];
};
struct vi {
  int32x4_t v[4];
};

static inline vf set1(float x) {
  const float32x4_t v = vdupq_n_f32(x);
  return {{v, v, v, v}};
}
static inline vf zero() { return set1(0.0f); }
static inline vf load(const float* p) { return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}}; }
static inline void store(float* p, vf x) { FORERUN_QUARTERS vst1q_f32(p + 4 * i, x.v[i]); }
static inline vf load_f16(const uint16_t* p) {
  vf r;
  FORERUN_QUARTERS r.v[i] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i)));
  return r;
}
static inline vf load_bf16(const uint16_t* p) {
  vf r;
  FORERUN_QUARTERS r.v[i] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16));
  return r;
}
static inline vf load_s8(const int8_t* p) {
  const int8x16_t x = vld1q_s8(p);
  const int16x8_t a = vmovl_s8(vget_low_s8(x)), b = vmovl_s8(vget_high_s8(x));
  return {{vcvtq_f32_s32(vmovl_s16(vget_low_s16(a))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(a))),
           vcvtq_f32_s32(vmovl_s16(vget_low_s16(b))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(b)))}};
}
static inline void store_f16(uint16_t* p, vf x) { FORERUN_QUARTERS vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(x.v[i]))); }
static inline void store_bf16(uint16_t* p, vf x) {
  FORERUN_QUARTERS {
    const uint32x4_t u = vreinterpretq_u32_f32(x.v[i]), high = vshrq_n_u32(u, 16);
    const uint32x4_t odd = vandq_u32(high, vdupq_n_u32(1));
    const uint32x4_t r = vshrq_n_u32(vaddq_u32(u, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    vst1_u16(p + 4 * i, vmovn_u32(vbslq_u32(vceqq_f32(x.v[i], x.v[i]), r, vorrq_u32(high, vdupq_n_u32(0x40)))));
  }
}

static inline vf add(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vaddq_f32(a.v[i], b.v[i]);
  return a;
}
static inline vf sub(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vsubq_f32(a.v[i], b.v[i]);
  return a;
}
static inline vf mul(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vmulq_f32(a.v[i], b.v[i]);
  return a;
}
static inline vf div(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vdivq_f32(a.v[i], b.v[i]);
  return a;
}
static inline vf fma(vf a, vf b, vf c) {
  FORERUN_QUARTERS c.v[i] = vfmaq_f32(c.v[i], a.v[i], b.v[i]);
  return c;
}
// As elsewhere: b where either is NaN.
static inline vf max(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vbslq_f32(vcgtq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
static inline vf min(vf a, vf b) {
  FORERUN_QUARTERS a.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), a.v[i], b.v[i]);
  return a;
}
static inline vf abs(vf a) {
  FORERUN_QUARTERS a.v[i] = vabsq_f32(a.v[i]);
  return a;
}
static inline vf round_even(vf a) {
  FORERUN_QUARTERS a.v[i] = vrndnq_f32(a.v[i]);
  return a;
}
static inline float32x4_t power_of_two(int32x4_t n) { return vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(n, vdupq_n_s32(127)), 23)); }
static inline vf scale2(vf a, vf n) {
  FORERUN_QUARTERS {
    const int32x4_t e = vcvtnq_s32_f32(n.v[i]);
    const int32x4_t half = vshrq_n_s32(vaddq_s32(e, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(e), 31))), 1);
    a.v[i] = vmulq_f32(vmulq_f32(a.v[i], power_of_two(half)), power_of_two(vsubq_s32(e, half)));
  }
  return a;
}
static inline vf keep_first(vf a, int n, float fill) {
  static const int32_t kFirst[4] = {0, 1, 2, 3};
  const int32x4_t lane = vld1q_s32(kFirst);
  FORERUN_QUARTERS {
    const uint32x4_t keep = vcgtq_s32(vdupq_n_s32(n), vaddq_s32(lane, vdupq_n_s32(4 * i)));
    a.v[i] = vbslq_f32(keep, a.v[i], vdupq_n_f32(fill));
  }
  return a;
}
static inline vf if_less(vf a, vf b, vf x, vf y) {
  FORERUN_QUARTERS y.v[i] = vbslq_f32(vcltq_f32(a.v[i], b.v[i]), x.v[i], y.v[i]);
  return y;
}
static inline float hsum(vf a) {
  const float32x4_t c = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  const float32x2_t d = vadd_f32(vget_low_f32(c), vget_high_f32(c));
  return vget_lane_f32(d, 0) + vget_lane_f32(d, 1);
}
static inline float hmax(vf a) {
  alignas(16) float x[16];
  store(x, a);
  float top = x[0];
  for (int i = 1; i < 16; i++) top = x[i] > top ? x[i] : top;
  return top;
}

static inline vi izero() {
  const int32x4_t v = vdupq_n_s32(0);
  return {{v, v, v, v}};
}
static inline vi iset1(int32_t x) {
  const int32x4_t v = vdupq_n_s32(x);
  return {{v, v, v, v}};
}
static inline vf to_float(vi a) {
  vf r;
  FORERUN_QUARTERS r.v[i] = vcvtq_f32_s32(a.v[i]);
  return r;
}
static inline void store_s8(int8_t* p, vf x) {
  int16x4_t words[4];
  FORERUN_QUARTERS {
    const int32x4_t r = vbslq_s32(vceqq_f32(x.v[i], x.v[i]), vcvtnq_s32_f32(x.v[i]), vdupq_n_s32(-127));  // NaN: -127
    words[i] = vqmovn_s32(vmaxq_s32(r, vdupq_n_s32(-127)));
  }
  vst1_s8(p, vqmovn_s16(vcombine_s16(words[0], words[1])));
  vst1_s8(p + 8, vqmovn_s16(vcombine_s16(words[2], words[3])));
}

// --- 8-bit weights ---------------------------------------------------------------------------------------------------

static constexpr bool kBiased8 = false;
struct w8 {
  int8x16_t v[4];
};
struct w4 {
  int8x16_t v[4];
};
static inline w8 load_w8(const uint8_t* p) {
  w8 r;
  FORERUN_QUARTERS r.v[i] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(p + 16 * i), vdupq_n_u8(0x80)));
  return r;
}
static inline void load_w4(const uint8_t* p, w4& low, w4& high) {
  FORERUN_QUARTERS {
    const uint8x16_t u = vld1q_u8(p + 16 * i);
    low.v[i] = vreinterpretq_s8_u8(vandq_u8(u, vdupq_n_u8(15)));
    high.v[i] = vreinterpretq_s8_u8(vshrq_n_u8(u, 4));
  }
}
static inline int8x16_t four_of(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(four));
}
#ifdef __ARM_FEATURE_DOTPROD
static constexpr int kLockstep = 4;
template <class W>
static inline vi begin_sum(const W&, const int32_t* start) {
  return iset1(*start);
}
template <class W>
static inline vi dot4(vi sum, const W& w, const int8_t* x) {
  const int8x16_t four = four_of(x);
  FORERUN_QUARTERS sum.v[i] = vdotq_s32(sum.v[i], w.v[i], four);
  return sum;
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }
#else
static constexpr int kLockstep = 2;
// Products in 16 bits; an output's four lie in four lanes. Weights 0..15: eight steps fit, 8 * 15 * 127 < 2^15.
// Signed ones are added up in 32 bits after each step.
struct words {  // of w4
  int16x8_t v[8];
};
struct halves {  // of w8: sums of an output's inputs 0 and 1, 2 and 3
  int32x4_t v[8];
};
static inline vi fold(const halves& sum, int32_t start) {
  vi r;
  FORERUN_QUARTERS r.v[i] = vaddq_s32(vdupq_n_s32(start), vpaddq_s32(sum.v[2 * i], sum.v[2 * i + 1]));
  return r;
}
static inline words begin_sum(const w4&, const int32_t*) {
  words r;
  for (int i = 0; i < 8; i++) r.v[i] = vdupq_n_s16(0);
  return r;
}
static inline words dot4(words sum, const w4& w, const int8_t* x) {
  const int8x16_t four = four_of(x);
  FORERUN_QUARTERS {
    sum.v[2 * i] = vmlal_s8(sum.v[2 * i], vget_low_s8(w.v[i]), vget_low_s8(four));
    sum.v[2 * i + 1] = vmlal_s8(sum.v[2 * i + 1], vget_high_s8(w.v[i]), vget_low_s8(four));
  }
  return sum;
}
static inline vi end_sum(const words& sum, const int32_t* start) {
  halves h;
  for (int i = 0; i < 8; i++) h.v[i] = vpaddlq_s16(sum.v[i]);
  return fold(h, *start);
}
static inline halves begin_sum(const w8&, const int32_t*) {
  halves r;
  for (int i = 0; i < 8; i++) r.v[i] = vdupq_n_s32(0);
  return r;
}
static inline halves dot4(halves sum, const w8& w, const int8_t* x) {
  const int8x8_t four = vget_low_s8(four_of(x));
  FORERUN_QUARTERS {
    sum.v[2 * i] = vpadalq_s16(sum.v[2 * i], vmull_s8(vget_low_s8(w.v[i]), four));
    sum.v[2 * i + 1] = vpadalq_s16(sum.v[2 * i + 1], vmull_s8(vget_high_s8(w.v[i]), four));
  }
  return sum;
}
static inline vi end_sum(const halves& sum, const int32_t* start) { return fold(sum, *start); }
#endif

static inline int32_t top_magnitude(vf a, vf b) {
  int32x4_t top = vdupq_n_s32(0);
  FORERUN_QUARTERS {
    top = vmaxq_s32(top, vreinterpretq_s32_f32(vabsq_f32(a.v[i])));
    top = vmaxq_s32(top, vreinterpretq_s32_f32(vabsq_f32(b.v[i])));
  }
  return vmaxvq_s32(top);
}
static inline int32_t sum_s8(const int8_t* p) { return vaddlvq_s8(vld1q_s8(p)); }

// --- bf16 weights ----------------------------------------------------------------------------------------------------

struct vb {
  vf even, odd;
};
struct xb {
  vf even, odd;
};
static inline vb load_pairs(const uint16_t* p) {
  vb r;
  FORERUN_QUARTERS {
    const uint32x4_t u = vreinterpretq_u32_u16(vld1q_u16(p + 8 * i));
    r.even.v[i] = vreinterpretq_f32_u32(vshlq_n_u32(u, 16));
    r.odd.v[i] = vreinterpretq_f32_u32(vandq_u32(u, vdupq_n_u32(0xffff0000u)));
  }
  return r;
}
static inline xb pair_of(const void* x, int k) {
  const float* f = static_cast<const float*>(x) + 2 * static_cast<long>(k);
  return {set1(f[0]), set1(f[1])};
}
static inline vf dot2(vf acc, const vb& w, const xb& x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }
static inline void store_pairs(float* p, int b, vf a) { store(p + b * kLanes, a); }

// --- pairs of 8-bit numbers ------------------------------------------------------------------------------------------

struct vw {
  int16x8_t v[4];
};
static inline vw load_words(const int8_t* p) {
  vw r;
  FORERUN_QUARTERS r.v[i] = vmovl_s8(vld1_s8(p + 8 * i));
  return r;
}
static inline vi dot_words(vi sum, const vw& w, const void* x) {
  int32_t two;
  __builtin_memcpy(&two, x, 4);
  const int16x4_t both = vreinterpret_s16_s32(vdup_n_s32(two));
  FORERUN_QUARTERS {
    const int32x4_t low = vmull_s16(vget_low_s16(w.v[i]), both), high = vmull_s16(vget_high_s16(w.v[i]), both);
    sum.v[i] = vaddq_s32(sum.v[i], vpaddq_s32(low, high));
  }
  return sum;
}
static inline void store_words(void* p, vf x) {
  FORERUN_QUARTERS {
    const int16x4_t words = vqmovn_s32(vcvtnq_s32_f32(x.v[i]));
    __builtin_memcpy(static_cast<char*>(p) + 8 * i, &words, 8);
  }
}
static inline vi load_int(const void* p) {
  vi r;
  __builtin_memcpy(r.v, p, sizeof r.v);
  return r;
}
static inline void store_int(void* p, const vi& x) { __builtin_memcpy(p, x.v, sizeof x.v); }

}  // namespace FORERUN_ISA
}  // namespace forerun
