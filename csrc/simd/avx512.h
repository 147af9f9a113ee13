// Vector operations with AVX-512 (F, BW, DQ, VL); with VNNI and BF16 instructions where the file is compiled for them.
// See portable.h for the interface.
#pragma once
#include <immintrin.h>

#include "simd/half.h"

namespace forerun {
namespace FORERUN_ISA {

static constexpr int kLanes = 16;
static constexpr int kRegisters = 32;

using vf = __m512;
using vi = __m512i;

static inline vf set1(float x) { return _mm512_set1_ps(x); }
static inline vf zero() { return _mm512_setzero_ps(); }
static inline vf load(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, vf a) { _mm512_storeu_ps(p, a); }
static inline vf load_f16(const uint16_t* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline vf load_bf16(const uint16_t* p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
static inline vf load_s8(const int8_t* p) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
}
static inline void store_f16(uint16_t* p, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT));
}
#ifdef __AVX512BF16__
static inline void store_bf16(uint16_t* p, vf a) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), (__m256i)_mm512_cvtneps_pbh(a)); }
#else
static inline void store_bf16(uint16_t* p, vf a) {
  const __m512i u = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(0x40));
  r = _mm512_mask_mov_epi32(r, _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
#endif

static inline vf add(vf a, vf b) { return _mm512_add_ps(a, b); }
static inline vf sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
static inline vf mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
static inline vf div(vf a, vf b) { return _mm512_div_ps(a, b); }
static inline vf fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
static inline vf max(vf a, vf b) { return _mm512_max_ps(a, b); }
static inline vf min(vf a, vf b) { return _mm512_min_ps(a, b); }
static inline vf abs(vf a) { return _mm512_abs_ps(a); }
static inline vf round_even(vf a) { return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline vf scale2(vf a, vf n) { return _mm512_scalef_ps(a, n); }
static inline vf keep_first(vf a, int n, float fill) {
  const __mmask16 keep = n >= 16 ? 0xffff : n <= 0 ? 0 : __mmask16((1u << n) - 1u);
  return _mm512_mask_mov_ps(_mm512_set1_ps(fill), keep, a);
}
static inline vf if_less(vf a, vf b, vf x, vf y) { return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), x); }
static inline float hsum(vf a) {
  const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
static inline float hmax(vf a) { return _mm512_reduce_max_ps(a); }

static inline vi izero() { return _mm512_setzero_si512(); }
static inline vi iset1(int32_t x) { return _mm512_set1_epi32(x); }
static inline vf to_float(vi a) { return _mm512_cvtepi32_ps(a); }
static inline void store_s8(int8_t* p, vf a) {
  const __m512i limited = _mm512_max_epi32(_mm512_cvtps_epi32(a), _mm512_set1_epi32(-127));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtsepi32_epi8(limited));
}

static constexpr int kLockstep = 6;
static inline __m512i four_of(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm512_set1_epi32(four);
}
struct w4 {
  __m512i v;
};
static inline void load_w4(const uint8_t* p, w4& low, w4& high) {
  const __m512i u = _mm512_loadu_si512(p), mask = _mm512_set1_epi8(15);
  low.v = _mm512_and_si512(u, mask);
  high.v = _mm512_and_si512(_mm512_srli_epi16(u, 4), mask);
}
#ifdef __AVX512VNNI__
static constexpr bool kBiased8 = true;
struct w8 {
  __m512i v;
};
static inline w8 load_w8(const uint8_t* p) { return {_mm512_loadu_si512(p)}; }
template <class W>
static inline vi begin_sum(const W&, const int32_t* start) {
  return iset1(*start);
}
template <class W>
static inline vi dot4(vi sum, const W& w, const int8_t* x) {
  return _mm512_dpbusd_epi32(sum, w.v, four_of(x));
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }
#else
// u8 x s8 gives sums of two in 16 bits. Weights 0..15: eight steps fit, 8 * 2 * 15 * 127 < 2^15. Signed weights, their
// magnitudes on the unsigned side: one step fits, 2 * 128 * 127 < 2^15.
static constexpr bool kBiased8 = false;
struct words {
  __m512i v;
};
static inline vi add_words(vi sum, __m512i pairs) { return _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1))); }
static inline words begin_sum(const w4&, const int32_t*) { return {_mm512_setzero_si512()}; }
static inline words dot4(words sum, const w4& w, const int8_t* x) {
  return {_mm512_add_epi16(sum.v, _mm512_maddubs_epi16(w.v, four_of(x)))};
}
static inline vi end_sum(words sum, const int32_t* start) { return add_words(iset1(*start), sum.v); }

struct w8 {
  __m512i magnitude;
  __mmask64 negative;
};
static inline w8 load_w8(const uint8_t* p) {
  const __m512i u = _mm512_xor_si512(_mm512_loadu_si512(p), _mm512_set1_epi8(char(0x80)));
  return {_mm512_abs_epi8(u), _mm512_movepi8_mask(u)};
}
static inline vi begin_sum(const w8&, const int32_t* start) { return iset1(*start); }
static inline vi dot4(vi sum, const w8& w, const int8_t* x) {
  const __m512i four = four_of(x), signed_four = _mm512_mask_sub_epi8(four, w.negative, _mm512_setzero_si512(), four);
  return add_words(sum, _mm512_maddubs_epi16(w.magnitude, signed_four));
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }
#endif

static inline int32_t top_magnitude(vf a, vf b) {
  const __m512i u = _mm512_max_epi32(_mm512_castps_si512(abs(a)), _mm512_castps_si512(abs(b)));
  return _mm512_reduce_max_epi32(u);
}
static inline int32_t sum_s8(const int8_t* p) {
  const __m128i u = _mm_xor_si128(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)), _mm_set1_epi8(char(0x80)));
  const __m128i sums = _mm_sad_epu8(u, _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 2))) - 16 * 128;
}

#ifdef __AVX512BF16__
static constexpr bool kBf16Rows = true;
using vb = __m512bh;
using xb = __m512bh;
static inline vb load_pairs(const uint16_t* p) { return (__m512bh)_mm512_loadu_si512(p); }
static inline xb pair_of(const void* x, int k) {
  int32_t pair;
  __builtin_memcpy(&pair, static_cast<const char*>(x) + 4 * static_cast<long>(k), 4);
  return (__m512bh)_mm512_set1_epi32(pair);
}
static inline vf dot2(vf acc, vb w, xb x) { return _mm512_dpbf16_ps(acc, w, x); }
static inline void store_pairs(float* p, int b, vf a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8 * static_cast<long>(b)), (__m256i)_mm512_cvtneps_pbh(a));
}
#else
static constexpr bool kBf16Rows = false;
struct vb {
  vf even, odd;
};
struct xb {
  vf even, odd;
};
static inline vb load_pairs(const uint16_t* p) {
  const __m512i u = _mm512_loadu_si512(p);
  return {_mm512_castsi512_ps(_mm512_slli_epi32(u, 16)),
          _mm512_castsi512_ps(_mm512_and_si512(u, _mm512_set1_epi32(int32_t(0xffff0000u))))};
}
static inline xb pair_of(const void* x, int k) {
  const float* f = static_cast<const float*>(x) + 2 * static_cast<long>(k);
  return {_mm512_set1_ps(f[0]), _mm512_set1_ps(f[1])};
}
static inline vf dot2(vf acc, vb w, xb x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }
static inline void store_pairs(float* p, int b, vf a) { store(p + b * kLanes, a); }
#endif

using vw = __m512i;
static inline vw load_words(const int8_t* p) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))); }
static inline vi dot_words(vi sum, vw w, const void* x) {
  int32_t two;
  __builtin_memcpy(&two, x, 4);
#ifdef __AVX512VNNI__
  return _mm512_dpwssd_epi32(sum, w, _mm512_set1_epi32(two));
#else
  return _mm512_add_epi32(sum, _mm512_madd_epi16(w, _mm512_set1_epi32(two)));
#endif
}
static inline void store_words(void* p, vf a) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(a)));
}
static inline vi load_int(const void* p) { return _mm512_loadu_si512(p); }
static inline void store_int(void* p, vi a) { _mm512_storeu_si512(p, a); }

}  // namespace FORERUN_ISA
}  // namespace forerun
