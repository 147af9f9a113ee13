// Attention over the cache. Included once per instruction set, after its simd header and math.h.
//
// Keys are visited in logical order whatever slots they lie in, in chunks of kChunk positions; a chunk's part depends
// only on the query and on the keys at those positions, so a node of a tree gets the bits that plain decoding gets.
#include "kernels/attention_store.inl"

namespace forerun {
namespace FORERUN_ISA {

// Asks for what step `step` of a loop that reads kBytes a step finds `bytes` after p, which may lie beyond the array.
template <int kBytes, int kLocality>
static inline void prefetch_step(const void* p, size_t bytes, int step) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) + bytes + static_cast<size_t>(step) * kBytes;
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i), 0, kLocality);
}

static inline int at_most(int a, int b) { return a < b ? a : b; }
static inline int at_least(int a, int b) { return a > b ? a : b; }

template <int R>
struct RowCount {
  static constexpr int value = R;
};
// Calls f(RowCount<R>(), r) for rows [r, r + R), until n rows are done.
template <class F>
static inline void for_rows(int n, const F& f) {
  for (int r = 0; r < n;) {
    const int left = n - r;
    if (kRegisters >= 32 && left >= 12) f(RowCount<12>(), r), r += 12;
    else if (kRegisters >= 32 && left >= 6) f(RowCount<6>(), r), r += 6;
    else if (left >= 4) f(RowCount<4>(), r), r += 4;
    else if (left == 3) f(RowCount<3>(), r), r += 3;
    else if (left == 2) f(RowCount<2>(), r), r += 2;
    else f(RowCount<1>(), r), r += 1;
  }
}

// Where queries find positions [start, end).
struct Span {
  int direct;             // positions below lie in the slots of the same number, for whoever sees furthest
  int low_block, blocks;  // of slots that tails lie in
};
static Span span_of(const Query* queries, int n, int start, int end) {
  int direct = start, low = INT32_MAX, high = -1;
  for (int r = 0; r < n; r++) {
    const Query& seen = queries[r];
    direct = at_least(direct, at_most(at_most(seen.prefix, seen.length), end));
    for (int p = at_least(seen.prefix, start); p < at_most(seen.length, end); p++) {
      low = at_most(low, seen.tail[p - seen.prefix]);
      high = at_least(high, seen.tail[p - seen.prefix]);
    }
  }
  if (high < 0) return {direct, 0, 0};
  return {direct, low / kKeyBlock, high / kKeyBlock - low / kKeyBlock + 1};
}

// Puts the scores of a query's tail where its positions are. tails: scores of the span's blocks.
static inline void take_tail_scores(const Query& query, const Span& span, const float* tails, int start, int high, float* scores) {
  for (int p = at_least(query.prefix, start); p < high; p++)
    scores[p - start] = tails[query.tail[p - query.prefix] - span.low_block * kKeyBlock];
}

// exp(s - maximum) of vectors [first, last) in place, and their sum.
template <bool kPairs>
static inline float soften_vectors(float* s, int first, int last, float maximum) {
  vf sum = zero();
  for (int b = first; b < last; b++) {
    const vf x = sub(load(s + b * kLanes), set1(maximum)), w = kPairs ? exp_below(x) : exp(x);
    if (kPairs) store_pairs(s, b, w);
    else store(s + b * kLanes, w);
    sum = add(sum, w);
  }
  return hsum(sum);
}

// Softmax weights of one query's scores s[0 .. kChunk), of which [lo, hi) count; the part's header is written.
// kPairs: weights as pair_of wants them, by pairs of positions.
template <bool kPairs>
static void soften(float* s, int lo, int hi, float* part) {
  constexpr int kVectors = kChunk / kLanes;
  const int first = lo / kLanes, last = (hi + kLanes - 1) / kLanes;  // vectors that have anything to say
  for (int i = first * kLanes; i < lo; i++) s[i] = -__builtin_inff();
  for (int i = hi; i < last * kLanes; i++) s[i] = -__builtin_inff();
  vf top = set1(-__builtin_inff());
  for (int b = first; b < last; b++) top = max(load(s + b * kLanes), top);
  part[0] = hmax(top);
  const bool whole = first == 0 && last == kVectors;  // with bounds that the compiler knows
  part[1] = whole ? soften_vectors<kPairs>(s, 0, kVectors, part[0]) : soften_vectors<kPairs>(s, first, last, part[0]);
}

}  // namespace FORERUN_ISA
}  // namespace forerun

#include "kernels/attention_floats.inl"
#include "kernels/attention_pairs.inl"

namespace forerun {
namespace FORERUN_ISA {

// Floats of scratch that attend needs when tails lie within `tail_blocks` blocks of slots.
static size_t attend_scratch(int tail_blocks, int value_stride) {
  return static_cast<size_t>(kMaxQueries) * (kChunk + static_cast<size_t>(tail_blocks) * kKeyBlock) + static_cast<size_t>(value_stride);
}

// Puts query i of a call of attend, q [head_dim], into `packed`: [head_dim, made even][kMaxQueries] floats.
static void pack_query(const KvHead& head, const float* q, int i, float* packed) {
  if (head.type != KvType::bf16) {
    for (int d = 0; d < head.head_dim; d++) packed[d * kMaxQueries + i] = q[d];
    return;
  }
  for (int d = 0; d < head.head_dim; d += 2)
    store_pair(packed, d / 2 * kMaxQueries + i, q[d], d + 1 < head.head_dim ? q[d + 1] : 0.0f);
}

// q: as pack_query makes it, of queries that are already scaled by 1 / sqrt(head_dim).
// parts[r * part_stride ..] = the part of query r over positions [chunk * kChunk, (chunk + 1) * kChunk). n <= kMaxQueries.
static void attend(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks, float* parts,
                   int part_stride) {
  if (head.type == KvType::f32) attend_as<float>(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
  else if (head.type == KvType::f16) attend_as<uint16_t>(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
  else if (head.type == KvType::bf16) attend_pairs(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
  else attend_as<int8_t>(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
}

// Adds `part` to `sum` (both of one query, the chunks in order): the online softmax of Milakov and Gimelshein
// (arXiv 1805.02867).
static void merge(float* sum, const float* part, int value_stride) {
  if (part[0] == -__builtin_inff()) return;
  if (sum[0] == -__builtin_inff()) {
    for (int i = 0; i < kPartHeader + value_stride; i++) sum[i] = part[i];
    return;
  }
  const float top = part[0] > sum[0] ? part[0] : sum[0];
  float factors[kLanes];
  store(factors, exp(keep_first(set1(sum[0] - top), 1, part[0] - top)));
  const vf old = set1(factors[0]), fresh = set1(factors[1]);
  sum[0] = top;
  sum[1] = sum[1] * factors[0] + part[1] * factors[1];
  for (int i = kPartHeader; i < kPartHeader + value_stride; i += kLanes)
    store(sum + i, fma(load(part + i), fresh, mul(load(sum + i), old)));
}

// out [head_dim] = the finished average.
static void finish(const float* sum, int head_dim, float* out) {
  const float inverse = 1.0f / sum[1];
  for (int d = 0; d < head_dim; d++) out[d] = sum[kPartHeader + d] * inverse;
}

}  // namespace FORERUN_ISA
}  // namespace forerun
