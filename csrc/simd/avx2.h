// Vector operations with AVX2, FMA and F16C; with VNNI's 256-bit form where the file is compiled for it.
// See portable.h for the interface. A vf is a pair of registers.
#pragma once
#include <immintrin.h>

#include "simd/half.h"

namespace forerun {
namespace FORERUN_ISA {

static constexpr int kLanes = 16;
static constexpr int kRegisters = 8;
static constexpr bool kBf16Rows = false;

struct vf {
  __m256 a, b;
};
struct vi {
  __m256i a, b;
};

static inline __m256i load_bytes(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
static inline __m128i load_half(const void* p) { return _mm_loadu_si128(static_cast<const __m128i*>(p)); }

static inline vf set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline vf zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline vf load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline void store(float* p, vf x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
static inline vf load_f16(const uint16_t* p) { return {_mm256_cvtph_ps(load_half(p)), _mm256_cvtph_ps(load_half(p + 8))}; }
static inline __m256 widen_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
static inline vf load_bf16(const uint16_t* p) { return {widen_bf16(load_half(p)), widen_bf16(load_half(p + 8))}; }
static inline vf load_s8(const int8_t* p) {
  const __m128i x = load_half(p);
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(x)), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(x, 8)))};
}
static inline void store_f16(uint16_t* p, vf x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(x.a, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(x.b, _MM_FROUND_TO_NEAREST_INT));
}
static inline __m256i narrow_bf16(__m256 x) {
  const __m256i u = _mm256_castps_si256(x), high = _mm256_srli_epi32(u, 16);
  const __m256i odd = _mm256_and_si256(high, _mm256_set1_epi32(1));
  const __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
  return _mm256_blendv_epi8(r, quiet, _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q)));
}
static inline void store_bf16(uint16_t* p, vf x) {
  const __m256i packed = _mm256_packus_epi32(narrow_bf16(x.a), narrow_bf16(x.b));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm256_permute4x64_epi64(packed, 0xd8));
}

static inline vf add(vf x, vf y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
static inline vf sub(vf x, vf y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
static inline vf mul(vf x, vf y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
static inline vf div(vf x, vf y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
static inline vf fma(vf x, vf y, vf z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
static inline vf max(vf x, vf y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
static inline vf min(vf x, vf y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
static inline vf abs(vf x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  return {_mm256_and_ps(x.a, mask), _mm256_and_ps(x.b, mask)};
}
static inline vf round_even(vf x) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(x.a, mode), _mm256_round_ps(x.b, mode)};
}
static inline __m256 power_of_two(__m256i n) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(n, _mm256_set1_epi32(127)), 23));
}
static inline __m256 scale2_half(__m256 x, __m256 n) {
  const __m256i e = _mm256_cvtps_epi32(n), h = _mm256_srai_epi32(_mm256_add_epi32(e, _mm256_srli_epi32(e, 31)), 1);
  return _mm256_mul_ps(_mm256_mul_ps(x, power_of_two(h)), power_of_two(_mm256_sub_epi32(e, h)));
}
static inline vf scale2(vf x, vf n) { return {scale2_half(x.a, n.a), scale2_half(x.b, n.b)}; }
static inline vf keep_first(vf x, int n, float fill) {
  const __m256i low = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), high = _mm256_add_epi32(low, _mm256_set1_epi32(8));
  const __m256i count = _mm256_set1_epi32(n);
  const __m256 other = _mm256_set1_ps(fill);
  return {_mm256_blendv_ps(other, x.a, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, low))),
          _mm256_blendv_ps(other, x.b, _mm256_castsi256_ps(_mm256_cmpgt_epi32(count, high)))};
}
static inline vf if_less(vf a, vf b, vf x, vf y) {
  return {_mm256_blendv_ps(y.a, x.a, _mm256_cmp_ps(a.a, b.a, _CMP_LT_OQ)), _mm256_blendv_ps(y.b, x.b, _mm256_cmp_ps(a.b, b.b, _CMP_LT_OQ))};
}
static inline float hsum(vf x) {
  const __m256 b = _mm256_add_ps(x.a, x.b);
  const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_add_ss(d, _mm_shuffle_ps(d, d, 1)));
}
static inline float hmax(vf x) {
  const __m256 b = _mm256_max_ps(x.a, x.b);
  const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
  const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
  return _mm_cvtss_f32(_mm_max_ss(d, _mm_shuffle_ps(d, d, 1)));
}

static inline vi izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline vi iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
static inline vf to_float(vi x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
static inline void store_s8(int8_t* p, vf x) {
  const __m256i low = _mm256_set1_epi32(-127);
  const __m256i a = _mm256_max_epi32(_mm256_cvtps_epi32(x.a), low), b = _mm256_max_epi32(_mm256_cvtps_epi32(x.b), low);
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
}

static constexpr int kLockstep = 4;
static inline __m256i four_of(const int8_t* x) {
  int32_t four;
  __builtin_memcpy(&four, x, 4);
  return _mm256_set1_epi32(four);
}
struct w4 {
  __m256i a, b;
};
static inline void load_w4(const uint8_t* p, w4& low, w4& high) {
  const __m256i a = load_bytes(p), b = load_bytes(p + 32), mask = _mm256_set1_epi8(15);
  low = {_mm256_and_si256(a, mask), _mm256_and_si256(b, mask)};
  high = {_mm256_and_si256(_mm256_srli_epi16(a, 4), mask), _mm256_and_si256(_mm256_srli_epi16(b, 4), mask)};
}
struct w8 {
  __m256i a, b;
};
#if defined(__AVXVNNI__) || defined(__AVX512VNNI__)
static constexpr bool kBiased8 = true;
static inline __m256i add_dot4(__m256i sum, __m256i w, __m256i x) {
#ifdef __AVXVNNI__
  return _mm256_dpbusd_avx_epi32(sum, w, x);
#else  // the same operation in AVX-512's encoding: lets machines without AVX-VNNI test this file
  return _mm256_dpbusd_epi32(sum, w, x);
#endif
}
static inline w8 load_w8(const uint8_t* p) { return {load_bytes(p), load_bytes(p + 32)}; }
template <class W>
static inline vi begin_sum(const W&, const int32_t* start) {
  return iset1(*start);
}
template <class W>
static inline vi dot4(vi sum, const W& w, const int8_t* x) {
  const __m256i four = four_of(x);
  return {add_dot4(sum.a, w.a, four), add_dot4(sum.b, w.b, four)};
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }
#else
// u8 x s8 gives sums of two in 16 bits. Weights 0..15: eight steps fit, 8 * 2 * 15 * 127 < 2^15. Signed weights, their
// magnitudes on the unsigned side: one step fits, 2 * 128 * 127 < 2^15.
static constexpr bool kBiased8 = false;
struct words {
  __m256i a, b;
};
static inline __m256i add_words(__m256i sum, __m256i pairs) {
  return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
static inline words begin_sum(const w4&, const int32_t*) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
static inline words dot4(words sum, const w4& w, const int8_t* x) {
  const __m256i four = four_of(x);
  return {_mm256_add_epi16(sum.a, _mm256_maddubs_epi16(w.a, four)), _mm256_add_epi16(sum.b, _mm256_maddubs_epi16(w.b, four))};
}
static inline vi end_sum(words sum, const int32_t* start) {
  const __m256i from = _mm256_set1_epi32(*start);
  return {add_words(from, sum.a), add_words(from, sum.b)};
}

static inline w8 load_w8(const uint8_t* p) {
  const __m256i flip = _mm256_set1_epi8(char(0x80));
  return {_mm256_xor_si256(load_bytes(p), flip), _mm256_xor_si256(load_bytes(p + 32), flip)};
}
static inline vi begin_sum(const w8&, const int32_t* start) { return iset1(*start); }
static inline __m256i signed_pairs(__m256i w, __m256i x) { return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)); }
static inline vi dot4(vi sum, const w8& w, const int8_t* x) {
  const __m256i four = four_of(x);
  return {add_words(sum.a, signed_pairs(w.a, four)), add_words(sum.b, signed_pairs(w.b, four))};
}
static inline vi end_sum(vi sum, const int32_t*) { return sum; }
#endif

static inline int32_t top_magnitude(vf x, vf y) {
  const vf p = abs(x), q = abs(y);
  const __m256i u = _mm256_max_epi32(_mm256_castps_si256(p.a), _mm256_castps_si256(p.b));
  const __m256i v = _mm256_max_epi32(u, _mm256_max_epi32(_mm256_castps_si256(q.a), _mm256_castps_si256(q.b)));
  const __m128i w = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  const __m128i z = _mm_max_epi32(w, _mm_shuffle_epi32(w, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(z, _mm_shuffle_epi32(z, 0xb1)));
}
static inline int32_t sum_s8(const int8_t* p) {
  const __m128i sums = _mm_sad_epu8(_mm_xor_si128(load_half(p), _mm_set1_epi8(char(0x80))), _mm_setzero_si128());
  return _mm_cvtsi128_si32(_mm_add_epi32(sums, _mm_shuffle_epi32(sums, 2))) - 16 * 128;
}

struct vb {
  vf even, odd;
};
struct xb {
  vf even, odd;
};
static inline vb load_pairs(const uint16_t* p) {
  const __m256i a = load_bytes(p), b = load_bytes(p + 16), high = _mm256_set1_epi32(int32_t(0xffff0000u));
  return {{_mm256_castsi256_ps(_mm256_slli_epi32(a, 16)), _mm256_castsi256_ps(_mm256_slli_epi32(b, 16))},
          {_mm256_castsi256_ps(_mm256_and_si256(a, high)), _mm256_castsi256_ps(_mm256_and_si256(b, high))}};
}
static inline xb pair_of(const void* x, int k) {
  const float* f = static_cast<const float*>(x) + 2 * static_cast<long>(k);
  return {set1(f[0]), set1(f[1])};
}
static inline vf dot2(vf acc, const vb& w, const xb& x) { return fma(w.odd, x.odd, fma(w.even, x.even, acc)); }
static inline void store_pairs(float* p, int b, vf a) { store(p + b * kLanes, a); }

struct vw {
  __m256i a, b;
};
static inline vw load_words(const int8_t* p) { return {_mm256_cvtepi8_epi16(load_half(p)), _mm256_cvtepi8_epi16(load_half(p + 16))}; }
static inline vi dot_words(vi sum, vw w, const void* x) {
  int32_t two;
  __builtin_memcpy(&two, x, 4);
  const __m256i both = _mm256_set1_epi32(two);
  return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(w.a, both)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(w.b, both))};
}
static inline void store_words(void* p, vf x) {
  const __m256i words = _mm256_packs_epi32(_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b));
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm256_permute4x64_epi64(words, 0xd8));
}
static inline vi load_int(const void* p) { return {load_bytes(p), load_bytes(static_cast<const char*>(p) + 32)}; }
static inline void store_int(void* p, vi x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), x.a);
  _mm256_storeu_si256(static_cast<__m256i*>(p) + 1, x.b);
}

}  // namespace FORERUN_ISA
}  // namespace forerun
