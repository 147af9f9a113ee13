// What choosing a token asks of whole rows of logits. Included once per instruction set, after its simd header.
//
// Rows are read in blocks of kBlock values, each with its highest value kept, so that later passes skip most of them.
// Vectors are the compiler's own (GCC and Clang), as wide as the instruction set's registers: comparisons give masks, and
// nothing but `tally`, which is approximate, depends on the width.
#include "kernels/choice.h"

namespace forerun {
namespace FORERUN_ISA {
namespace choice {

#if defined(__AVX512F__)
static constexpr int kWidth = 64;
#elif defined(__AVX2__)
static constexpr int kWidth = 32;
#else
static constexpr int kWidth = 16;
#endif
static constexpr int kFloats = kWidth / 4, kDoubles = kWidth / 8;

typedef float floats __attribute__((vector_size(kWidth)));
typedef float half_floats __attribute__((vector_size(kWidth / 2)));
typedef int32_t ints __attribute__((vector_size(kWidth)));
typedef uint32_t uints __attribute__((vector_size(kWidth)));
typedef double doubles __attribute__((vector_size(kWidth)));
typedef int64_t longs __attribute__((vector_size(kWidth)));
typedef uint64_t words __attribute__((vector_size(kWidth)));

template <class V, class T>
static inline V read(const T* p) {
  V v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
template <class To, class From>
static inline To bits_as(const From& from) {
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

static inline int blocks_in(int n) { return (n + kBlock - 1) / kBlock; }

// Block b of x[0 .. n): where it is, or, where it is cut short, a copy in `spare` filled up with -inf.
static inline const float* block_at(const float* x, int n, int b, float* spare) {
  const int begin = b * kBlock, length = n - begin;
  if (length >= kBlock) return x + begin;
  for (int i = 0; i < kBlock; i++) spare[i] = i < length ? x[begin + i] : -__builtin_inff();
  return spare;
}

static inline float highest_of(floats v) {
  typedef float four __attribute__((vector_size(16)));
  four parts[kWidth / 16];
  __builtin_memcpy(parts, &v, sizeof v);
  for (int w = kWidth / 32; w > 0; w /= 2)
    for (int i = 0; i < w; i++) parts[i] = parts[i] > parts[i + w] ? parts[i] : parts[i + w];
  const four top = parts[0];
  const float a = top[0] > top[1] ? top[0] : top[1], b = top[2] > top[3] ? top[2] : top[3];
  return a > b ? a : b;
}

static float survey(const float* x, int n, float* tops) {
  float spare[kBlock];
  ints strange = {};
  floats highest = floats{} - __builtin_inff();
  for (int b = 0; b < blocks_in(n); b++) {
    const float* p = block_at(x, n, b, spare);
    floats top = read<floats>(p);
    strange |= top != top;
    for (int i = kFloats; i < kBlock; i += kFloats) {
      const floats v = read<floats>(p + i);
      strange |= v != v;
      top = v > top ? v : top;
    }
    highest = top > highest ? top : highest;
    tops[b] = highest_of(top);
  }
  int32_t any = 0;
  for (int i = 0; i < kFloats; i++) any |= strange[i];
  return any != 0 ? __builtin_nanf("") : highest_of(highest);
}

static void copy_allowed(const float* x, int n, const uint32_t* allowed, float* y) {
  constexpr int kParts = 32 / kFloats;  // vectors that share a word
  ints bits[kParts];
  for (int j = 0; j < 32; j++) bits[j / kFloats][j % kFloats] = int32_t(1u << j);
  const floats out = floats{} - __builtin_inff();
  int i = 0;
  for (; i + 32 <= n; i += 32)
    for (int j = 0; j < kParts; j++) {
      const ints bit = (ints{} + int32_t(allowed[i / 32])) & bits[j];
      const floats v = bit != 0 ? read<floats>(x + i + j * kFloats) : out;
      __builtin_memcpy(y + i + j * kFloats, &v, sizeof v);
    }
  for (; i < n; i++) y[i] = (allowed[i / 32] >> (i % 32)) & 1u ? x[i] : -__builtin_inff();
}

static uint64_t reaching_whole(const float* x, float least) {
  uint64_t bits = 0;
#if defined(__AVX512F__)
  for (int i = 0; i < kBlock; i += 16)
    bits |= uint64_t(_mm512_cmp_ps_mask(_mm512_loadu_ps(x + i), _mm512_set1_ps(least), _CMP_GE_OQ)) << i;
#elif defined(__AVX2__)
  for (int i = 0; i < kBlock; i += 8)
    bits |= uint64_t(uint32_t(_mm256_movemask_ps(_mm256_cmp_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(least), _CMP_GE_OQ)))) << i;
#else
  for (int i = 0; i < kBlock; i++) bits |= uint64_t(x[i] >= least) << i;
#endif
  return bits;
}

static uint64_t reaching(const float* x, int n, int b, float least) {
  float spare[kBlock];
  const float* block = block_at(x, n, b, spare);
  const int length = n - b * kBlock;
  return reaching_whole(block, least) & (length < kBlock ? (uint64_t(1) << length) - 1 : ~uint64_t(0));
}

static int collect(const float* x, int n, const float* tops, float least, int32_t* ids) {
  int count = 0;
  const int blocks = blocks_in(n);
  for (int c = 0; c < blocks_in(blocks); c++)
    for (uint64_t some = reaching(tops, blocks, c, least); some != 0; some &= some - 1) {
      const int b = c * kBlock + __builtin_ctzll(some);
      for (uint64_t bits = reaching(x, n, b, least); bits != 0; bits &= bits - 1) ids[count++] = b * kBlock + __builtin_ctzll(bits);
    }
  return count;
}

// Bits that order as the floats do, -0 just below 0; and back.
static inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

static float kth_of(const float* values, int n, int k, int32_t* keys) {
  for (int i = 0; i < n; i++) keys[i] = ordered(bits_as<int32_t>(values[i]));
  const auto reach = [&](int32_t least) {
    int count = 0;
    for (int i = 0; i < n; i++) count += keys[i] >= least;
    return count;
  };
  int32_t kth = reach(0) >= k ? 0 : INT32_MIN;  // then bit by bit the greatest key that k values reach
  for (int bit = 30; bit >= 0; bit--)
    if (reach(kth | 1 << bit) >= k) kth |= 1 << bit;
  return bits_as<float>(ordered(kth));
}

// a b + c where the rounding does not matter.
static inline floats about(floats a, floats b, floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX2__)
  return _mm256_fmadd_ps(a, b, c);
#else
  return a * b + c;
#endif
}

// 2^d for d <= 0, nearly: to 3e-6 and the rounding of d. At least 2^-126.
static inline floats rough_exp2(floats d) {
  const floats lowest = floats{} - 126.0f;
  d = d > lowest ? d : lowest;
  const floats shifted = d + 12582912.0f;  // 1.5 * 2^23: the whole part in the lowest bits
  const floats f = d - (shifted - 12582912.0f);
  floats p = about(f, floats{} + 0.009570101276040077f, floats{} + 0.05591785907745361f);
  p = about(p, f, floats{} + 0.240247443318367f);
  p = about(p, f, floats{} + 0.6931217908859253f);
  p = about(p, f, floats{} + 0.9999992847442627f);
  return bits_as<floats>(bits_as<uints>(p) + (bits_as<uints>(shifted) << 23));
}

// A sum in doubles of what comes in floats, a few of these added as floats first.
class Sum {
 public:
  void add(floats v) {
    some_ += v;
    if (++count_ == 16) flush();
  }
  double total() {
    flush();
    double sum = 0.0;
    for (int i = 0; i < kDoubles; i++) sum += low_[i] + high_[i];
    return sum;
  }

 private:
  void flush() {
    half_floats halves[2];
    __builtin_memcpy(halves, &some_, sizeof some_);
    low_ += __builtin_convertvector(halves[0], doubles);
    high_ += __builtin_convertvector(halves[1], doubles);
    some_ = floats{};
    count_ = 0;
  }
  floats some_ = {};
  int count_ = 0;
  doubles low_ = {}, high_ = {};
};

static Masses tally(const float* x, int n, const float* tops, float least, float value, float top, float scale) {
  constexpr int kVectors = kBlock / kFloats;
  float spare[kBlock];
  Sum all, from;
  for (int b = 0; b < blocks_in(n); b++) {
    if (!(tops[b] >= least)) continue;
    const float* p = block_at(x, n, b, spare);
    ints weights[kVectors];
    floats sum = {};
    for (int i = 0; i < kVectors; i++) {
      const floats v = read<floats>(p + i * kFloats);
      weights[i] = bits_as<ints>(rough_exp2((v - top) * scale)) & (v >= least);
      sum += bits_as<floats>(weights[i]);
    }
    all.add(sum);
    if (!(tops[b] >= value)) continue;
    sum = floats{};
    for (int i = 0; i < kVectors; i++) sum += bits_as<floats>(weights[i] & (read<floats>(p + i * kFloats) >= value));
    from.add(sum);
  }
  return {all.total(), from.total()};
}

static double exp_sum(const float* x, int n, const float* tops, float least, double temperature, double best, double* weights) {
  constexpr double kMagic = 6755399441055744.0;  // 1.5 * 2^52: the whole part in the lowest bits
  float spare[kBlock];
  doubles sums[8 / kDoubles] = {};
  for (int b = 0; b < blocks_in(n); b++) {
    if (!(tops[b] >= least)) {
      for (int i = b * kBlock; weights != nullptr && i < n && i < (b + 1) * kBlock; i++) weights[i] = 0.0;
      continue;
    }
    const float* block = block_at(x, n, b, spare);
    for (int i = 0; i < kBlock; i += 8)
      for (int j = 0; j < 8 / kDoubles; j++) {
        const half_floats v = read<half_floats>(block + i + j * kDoubles);
        doubles s = __builtin_convertvector(v, doubles);
        const longs out = s < double(least);
        if (temperature != 1.0) s = s / temperature;
        s = s - best;
        const doubles z = s * kLog2E + 0.5, nearest = (z + kMagic) - kMagic;
        const doubles k = nearest - (nearest > z ? doubles{} + 1.0 : doubles{});
        const doubles r = (s - k * kLn2High) - k * kLn2Low;
        doubles p = doubles{} + kExpTerms[0];
        for (int t = 1; t < 13; t++) p = p * r + kExpTerms[t];
        const words e = bits_as<words>(p) + (bits_as<words>(k + kMagic) << 52);
        const doubles weight = bits_as<doubles>(e & ~bits_as<words>(out | (s < kLeastExponent)));
        sums[j] += weight;
        const int at = b * kBlock + i + j * kDoubles;
        if (weights != nullptr)
          for (int l = 0; l < kDoubles && at + l < n; l++) weights[at + l] = weight[l];
      }
  }
  double lanes[8];
  __builtin_memcpy(lanes, sums, sizeof lanes);
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

static inline void multiply(words& low, words& high, uint64_t factor) {  // of 32-bit words
  const words product = low * factor;
  low = product & 0xffffffffu;
  high = product >> 32;
}

static void lift(uint64_t seed, uint32_t position, const float* tops, int groups, float least, float top, float inverse,
                 uint64_t* noise, float* bounds) {
  // Philox4x32-10 of the counters that hold two groups each, as sampling/noise.h has it
  words lane = {};
  for (int i = 0; i < kDoubles; i++) lane[i] = uint64_t(i);
  for (int first = 0; 2 * first < groups; first += kDoubles) {
    words c0 = lane + uint64_t(first), c1 = words{} + position, c2 = words{} + kGroupStream, c3 = {};
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; round++) {
      words a, b;
      multiply(c0, a, kPhiloxMultiply0);
      multiply(c2, b, kPhiloxMultiply2);
      const words low_a = c0, low_b = c2;
      c0 = b ^ c1 ^ k0;
      c1 = low_b;
      c2 = a ^ c3 ^ k1;
      c3 = low_a;
      k0 += kPhiloxWeyl0;
      k1 += kPhiloxWeyl1;
    }
    const words even = c0 | c1 << 32, odd = c2 | c3 << 32;
    for (int i = 0; i < kDoubles; i++) {
      noise[2 * (first + i)] = even[i];
      noise[2 * (first + i) + 1] = odd[i];
    }
  }
  // With u the group's uniform number its noise is at most -log((1 - u) / 64), for -log u >= 1 - u; and log2 of a float
  // is at least its bits read as a fixed-point number.
  constexpr float kLn2F = 0.69314718f;
  constexpr float kMost = kLn2F * (6 + 31 + 127) + 1e-3f, kStep = kLn2F * 0x1p-23f;
  for (int g = 0; g < groups; g++) {
    const float rest = float(int32_t(~uint32_t(noise[g]) >> 1)) + 0.25f;  // at most (1 - u) 2^31
    const float bound = (tops[g] - top) * inverse + (kMost - kStep * float(bits_as<int32_t>(rest)));
    bounds[g] = tops[g] >= least ? bound : -__builtin_inff();
  }
}

}  // namespace choice
}  // namespace FORERUN_ISA
}  // namespace forerun
