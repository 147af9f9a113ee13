// Attention over the cache. Included once per instruction set, after its simd header and math.h.
//
// Keys are visited in logical order whatever slots they lie in, in chunks of kChunk positions. What a chunk adds to a query's
// sum depends only on the query and on the keys and values at its positions and before, so a node of a tree gets the bits that
// plain decoding gets.
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

// Calls f(block, count, done) for blocks [first, first + blocks), page by page; `done` are done before.
template <class F>
static inline void for_pages(int first, int blocks, const F& f) {
  constexpr int kBlocks = kPage / kKeyBlock;
  for (int done = 0, some; done < blocks; done += some) {
    some = at_most(blocks - done, kBlocks - (first + done) % kBlocks);
    f(first + done, some, done);
  }
}

// Bytes from a value to a key as far into the next page, where the next chunk is.
static inline size_t to_next_keys(const KvHead& head) {
  static_assert(kPage == kChunk);
  return reinterpret_cast<uintptr_t>(head.keys) - reinterpret_cast<uintptr_t>(head.values) + head.page_bytes;
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

// Softmax weights in f32; in f32 to be rounded to 16 bits; as pair_of wants them, by pairs of positions.
enum class Weights { exact, rough, pairs };

// exp(s - maximum) of vectors [first, last) in place, and their sum.
template <Weights kWeights>
static inline float soften_vectors(float* s, int first, int last, float maximum) {
  vf sum = zero();
  for (int b = first; b < last; b++) {
    const vf x = sub(load(s + b * kLanes), set1(maximum)), w = kWeights == Weights::exact ? exp(x) : exp_below(x);
    if (kWeights == Weights::pairs) store_pairs(s, b, w);
    else store(s + b * kLanes, w);
    sum = add(sum, w);
  }
  return hsum(sum);
}

// Makes `top` the maximum that a sum's weights refer to: the online softmax of Milakov and Gimelshein (arXiv 1805.02867).
static inline void raise(float* sum, float top, int value_stride) {
  if (sum[0] > -__builtin_inff()) {
    const vf factor = exp(set1(sum[0] - top));
    for (int i = 0; i < kSumHeader + value_stride; i += kLanes) store(sum + i, mul(load(sum + i), factor));
  }
  sum[0] = top;
}

// Softmax weights of one query's scores s[0 .. kChunk), of which [lo, hi) count, under the maximum of its sum so far and these;
// they are counted in the sum.
template <Weights kWeights>
static void soften(float* s, int lo, int hi, float* sum, int value_stride) {
  constexpr int kVectors = kChunk / kLanes;
  const int first = lo / kLanes, last = (hi + kLanes - 1) / kLanes;  // vectors that have anything to say
  for (int i = first * kLanes; i < lo; i++) s[i] = -__builtin_inff();
  for (int i = hi; i < last * kLanes; i++) s[i] = -__builtin_inff();
  vf tops = set1(-__builtin_inff());
  for (int b = first; b < last; b++) tops = max(load(s + b * kLanes), tops);
  const float top = hmax(tops);
  if (top > sum[0]) raise(sum, top, value_stride);
  const bool whole = first == 0 && last == kVectors;  // with bounds that the compiler knows
  sum[1] += whole ? soften_vectors<kWeights>(s, 0, kVectors, sum[0]) : soften_vectors<kWeights>(s, first, last, sum[0]);
}

}  // namespace FORERUN_ISA
}  // namespace forerun

#include "kernels/attention_bytes.inl"
#include "kernels/attention_floats.inl"
#include "kernels/attention_pairs.inl"

namespace forerun {
namespace FORERUN_ISA {

// Floats of scratch that attend needs when tails lie within `tail_blocks` blocks of slots.
static size_t attend_scratch(int tail_blocks, int value_stride) {
  return static_cast<size_t>(kMaxQueries) * (kChunk + static_cast<size_t>(tail_blocks) * kKeyBlock + static_cast<size_t>(value_stride));
}

// Puts query i of a call of attend, q [value_stride] with zeros from head_dim on, into `packed`: [head_dim + 2][kMaxQueries] floats.
static void pack_query(const KvHead& head, const float* q, int i, float* packed) {
  if (head.type == KvType::q8) return pack_words(head, q, i, packed);
  if (head.type == KvType::bf16) return pack_pairs(head, q, i, packed);
  for (int d = 0; d < head.head_dim; d++) packed[d * kMaxQueries + i] = q[d];
}

// Makes n sums those of nothing.
static void clear(float* sums, int n, int value_stride) {
  const int stride = kSumHeader + value_stride;
  __builtin_memset(sums, 0, sizeof(float) * static_cast<size_t>(n) * stride);
  for (int r = 0; r < n; r++) sums[static_cast<size_t>(r) * stride] = -__builtin_inff();
}

// Adds positions [chunk * kChunk, (chunk + 1) * kChunk) to the sums of n queries. n <= kMaxQueries.
// q: as pack_query makes it, of queries that are already scaled by 1 / sqrt(head_dim).
static void attend(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks, float* sums) {
  if (head.type == KvType::f32) attend_as<float>(head, q, queries, n, chunk, scratch, tail_blocks, sums);
  else if (head.type == KvType::f16) attend_as<uint16_t>(head, q, queries, n, chunk, scratch, tail_blocks, sums);
  else if (head.type == KvType::bf16) attend_pairs(head, q, queries, n, chunk, scratch, tail_blocks, sums);
  else attend_bytes(head, q, queries, n, chunk, scratch, tail_blocks, sums);
}

// Adds the sums of n queries over later positions, `more`, to theirs. n <= kMaxQueries.
static void merge(float* sums, const float* more, int n, int value_stride) {
  const size_t stride = kSumHeader + static_cast<size_t>(value_stride);
  float old[kLanes] = {}, fresh[kLanes] = {};
  static_assert(kMaxQueries <= kLanes);
  for (int r = 0; r < n; r++) {
    const float a = sums[r * stride], b = more[r * stride];
    if (a < b) old[r] = a - b;
    else if (b < a) fresh[r] = b - a;
  }
  store(old, exp(load(old)));
  store(fresh, exp(load(fresh)));
  for (int r = 0; r < n; r++) {
    float* sum = sums + r * stride;
    const float* part = more + r * stride;
    const float top = part[0] > sum[0] ? part[0] : sum[0];
    for (int i = 0; i < kSumHeader + value_stride; i += kLanes)
      store(sum + i, fma(load(part + i), set1(fresh[r]), mul(load(sum + i), set1(old[r]))));
    sum[0] = top;
  }
}

// out [head_dim] = the finished average.
static void finish(const float* sum, int head_dim, float* out) {
  const float inverse = 1.0f / sum[1];
  for (int d = 0; d < head_dim; d++) out[d] = sum[kSumHeader + d] * inverse;
}

}  // namespace FORERUN_ISA
}  // namespace forerun
