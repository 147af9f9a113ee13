// Attention over the cache. Included once per instruction set, after its simd header and math.h.
//
// Keys are visited in logical order whatever slots they lie in, in chunks of kChunk positions; a chunk's part depends
// only on the query and on the keys at those positions, so a node of a tree gets the bits that plain decoding gets.
#include "kernels/attention.h"

namespace forerun {
namespace FORERUN_ISA {

static inline vf load_kv(const float* p) { return load(p); }
static inline vf load_kv(const uint16_t* p) { return load_f16(p); }
static inline vf load_kv(const int8_t* p) { return load_s8(p); }

// Asks for what step `step` of a loop that reads kBytes a step finds `bytes` after p, which may lie beyond the array.
template <int kBytes, int kLocality>
static inline void prefetch_step(const void* p, size_t bytes, int step) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(p) + bytes + static_cast<size_t>(step) * kBytes;
  for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(reinterpret_cast<const void*>(at + i), 0, kLocality);
}

// --- storing ---------------------------------------------------------------------------------------------------------

static inline float absolute_maximum(const float* x, int n) {
  float top = 0.0f;
  for (int i = 0; i < n; i++) {
    const float a = __builtin_fabsf(x[i]);
    top = a > top ? a : top;
  }
  return top;
}

// x: [head_dim], room for value_stride floats with the padding zero. `packed` gets x in the cache's type.
template <class T>
static float encode(const float* x, int padded, T* packed);
template <>
float encode<float>(const float* x, int padded, float* packed) {
  for (int i = 0; i < padded; i++) packed[i] = x[i];
  return 1.0f;
}
template <>
float encode<uint16_t>(const float* x, int padded, uint16_t* packed) {
  for (int i = 0; i < padded; i += kLanes) store_f16(packed + i, load(x + i));
  return 1.0f;
}
template <>
float encode<int8_t>(const float* x, int padded, int8_t* packed) {
  const float top = absolute_maximum(x, padded);
  const float inverse = top > 0.0f ? 127.0f / top : 0.0f;
  for (int i = 0; i < padded; i += kLanes) store_s8(packed + i, mul(load(x + i), set1(inverse)));
  return top / 127.0f;
}

template <class T>
static void store_key_as(const KvHead& head, int slot, const float* key, T* scratch) {
  const float scale = encode<T>(key, head.value_stride, scratch);
  T* block = static_cast<T*>(head.keys) + static_cast<size_t>(slot / kKeyBlock) * head.head_dim * kKeyBlock;
  for (int d = 0; d < head.head_dim; d++) block[d * kKeyBlock + slot % kKeyBlock] = scratch[d];
  if (head.type == KvType::q8) head.key_scales[slot] = scale;
}

// key: value_stride floats, zero from head_dim on; scratch: as many floats.
static void store_key(const KvHead& head, int slot, const float* key, float* scratch) {
  if (head.type == KvType::f32) store_key_as<float>(head, slot, key, scratch);
  else if (head.type == KvType::f16) store_key_as<uint16_t>(head, slot, key, reinterpret_cast<uint16_t*>(scratch));
  else store_key_as<int8_t>(head, slot, key, reinterpret_cast<int8_t*>(scratch));
}

// value: value_stride floats, zero from head_dim on.
static void store_value(const KvHead& head, int slot, const float* value) {
  const size_t at = static_cast<size_t>(slot) * head.value_stride;
  if (head.type == KvType::f32) encode<float>(value, head.value_stride, static_cast<float*>(head.values) + at);
  else if (head.type == KvType::f16) encode<uint16_t>(value, head.value_stride, static_cast<uint16_t*>(head.values) + at);
  else head.value_scales[slot] = encode<int8_t>(value, head.value_stride, static_cast<int8_t*>(head.values) + at);
}

// --- scores ----------------------------------------------------------------------------------------------------------

// scores[r * stride + 16 * b + lane] = q_r . key, for `blocks` blocks of keys. q: [dim][kMaxQueries], from query r on.
// values: of the same slots. They are wanted soon, and come while scores are computed: a forward's weights have driven them
// out of the caches since the last token.
template <class T, int R, int B>
static inline void score_blocks(const float* q, const T* keys, const T* values, int dim, float* scores, int stride) {
  constexpr int kBytes = B * kKeyBlock * static_cast<int>(sizeof(T));  // of keys in a step, and about as many of values
  vf acc[R][B];
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) acc[r][b] = zero();
  for (int d = 0; d < dim; d++) {
    vf k[B];
    for (int b = 0; b < B; b++) k[b] = load_kv(keys + (static_cast<size_t>(b) * dim + d) * kKeyBlock);
    prefetch_step<kBytes, 3>(keys, static_cast<size_t>(dim) * kBytes, d);  // the next blocks
    prefetch_step<kBytes, 2>(values, 0, d);
    for (int r = 0; r < R; r++)
      for (int b = 0; b < B; b++) acc[r][b] = fma(k[b], set1(q[d * kMaxQueries + r]), acc[r][b]);
  }
  for (int r = 0; r < R; r++)
    for (int b = 0; b < B; b++) store(scores + r * stride + b * kKeyBlock, acc[r][b]);
}

template <class T, int R>
static void score_rows(const float* q, const T* keys, const T* values, int dim, int value_stride, int blocks, float* scores,
                       int stride) {
  constexpr int kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : 1;
  const size_t step = static_cast<size_t>(dim) * kKeyBlock, value_step = static_cast<size_t>(value_stride) * kKeyBlock;
  int b = 0;
  for (; b + kWide <= blocks; b += kWide)
    score_blocks<T, R, kWide>(q, keys + b * step, values + b * value_step, dim, scores + b * 16, stride);
  for (; b < blocks; b++) score_blocks<T, R, 1>(q, keys + b * step, values + b * value_step, dim, scores + b * 16, stride);
}

// Scores of blocks [first_block, first_block + blocks) for n queries; q8 scores are multiplied by the keys' scales.
template <class T>
static void score(const KvHead& head, const float* q, int n, int first_block, int blocks, float* scores, int stride) {
  const T* keys = static_cast<const T*>(head.keys) + static_cast<size_t>(first_block) * head.head_dim * kKeyBlock;
  const T* values = static_cast<const T*>(head.values) + static_cast<size_t>(first_block) * head.value_stride * kKeyBlock;
  const int dim = head.head_dim, value_stride = head.value_stride;
  for (int r = 0; r < n;) {
    float* out = scores + r * stride;
    const int left = n - r;
    if (kRegisters >= 32 && left >= 12) score_rows<T, 12>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 12;
    else if (kRegisters >= 32 && left >= 6) score_rows<T, 6>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 6;
    else if (left >= 4) score_rows<T, 4>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 4;
    else if (left == 3) score_rows<T, 3>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 3;
    else if (left == 2) score_rows<T, 2>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 2;
    else score_rows<T, 1>(q + r, keys, values, dim, value_stride, blocks, out, stride), r += 1;
  }
  if (head.type != KvType::q8) return;
  const float* scales = head.key_scales + first_block * kKeyBlock;
  for (int r = 0; r < n; r++)
    for (int i = 0; i < blocks * kKeyBlock; i += kLanes)
      store(scores + r * stride + i, mul(load(scores + r * stride + i), load(scales + i)));
}

// --- weighted values -------------------------------------------------------------------------------------------------

// out[r][16 t ..] += sum over i in [0, count) of weights[r * kChunk + i] * values[i], position after position.
// next: bytes from a value to what is asked for with it, the next chunk's keys.
template <class T, int R, int V>
static inline void mix_rows(const T* values, size_t value_stride, int count, const float* weights, float* out, int out_stride,
                            size_t next) {
  constexpr int kBytes = V * kLanes * static_cast<int>(sizeof(T));
  vf acc[R][V];
  for (int r = 0; r < R; r++)
    for (int t = 0; t < V; t++) acc[r][t] = load(out + r * out_stride + t * kLanes);
  for (int i = 0; i < count; i++) {
    vf v[V];
    for (int t = 0; t < V; t++) v[t] = load_kv(values + i * value_stride + t * kLanes);
    prefetch_step<kBytes, 3>(values, (i + 8) * value_stride * sizeof(T), 0);
    prefetch_step<kBytes, 2>(values, i * value_stride * sizeof(T) + next, 0);
    for (int r = 0; r < R; r++) {
      const vf w = set1(weights[r * kChunk + i]);
      for (int t = 0; t < V; t++) acc[r][t] = fma(v[t], w, acc[r][t]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int t = 0; t < V; t++) store(out + r * out_stride + t * kLanes, acc[r][t]);
}

template <class T, int R>
static void mix_dims(const T* values, int value_stride, int count, const float* weights, float* out, int out_stride,
                     size_t next) {
  constexpr int kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : (R <= 2 ? 2 : 1);
  int t = 0;
  const int vectors = value_stride / kLanes;
  for (; t + kWide <= vectors; t += kWide)
    mix_rows<T, R, kWide>(values + t * kLanes, value_stride, count, weights, out + t * kLanes, out_stride, next);
  for (; t < vectors; t++)
    mix_rows<T, R, 1>(values + t * kLanes, value_stride, count, weights, out + t * kLanes, out_stride, next);
}

// out[r] += sum over i in [0, count) of weights[r * kChunk + at + i] * the value in slot + i, for n queries.
template <class T>
static void mix(const T* values, int value_stride, int slot, int count, const float* weights, int at, int n, float* out,
                int out_stride, size_t next) {
  if (count <= 0) return;
  values += static_cast<size_t>(slot) * value_stride;
  weights += at;
  for (int r = 0; r < n;) {
    const float* w = weights + r * kChunk;
    float* o = out + r * out_stride;
    const int left = n - r;
    if (kRegisters >= 32 && left >= 12) mix_dims<T, 12>(values, value_stride, count, w, o, out_stride, next), r += 12;
    else if (kRegisters >= 32 && left >= 6) mix_dims<T, 6>(values, value_stride, count, w, o, out_stride, next), r += 6;
    else if (left >= 4) mix_dims<T, 4>(values, value_stride, count, w, o, out_stride, next), r += 4;
    else if (left == 3) mix_dims<T, 3>(values, value_stride, count, w, o, out_stride, next), r += 3;
    else if (left == 2) mix_dims<T, 2>(values, value_stride, count, w, o, out_stride, next), r += 2;
    else mix_dims<T, 1>(values, value_stride, count, w, o, out_stride, next), r += 1;
  }
}

// --- one chunk -------------------------------------------------------------------------------------------------------

static inline int at_most(int a, int b) { return a < b ? a : b; }
static inline int at_least(int a, int b) { return a > b ? a : b; }

// Softmax weights of one query's scores s[0 .. kChunk), of which [lo, hi) count; the part's header is written.
static void soften(float* s, int lo, int hi, float* part) {
  const int first = lo / kLanes, last = (hi + kLanes - 1) / kLanes;  // vectors that have anything to say
  for (int i = first * kLanes; i < lo; i++) s[i] = -__builtin_inff();
  vf top = set1(-__builtin_inff());
  for (int b = first; b < last; b++) {
    const vf v = keep_first(load(s + b * kLanes), hi - b * kLanes, -__builtin_inff());
    top = max(v, top);
  }
  const float maximum = hmax(top);
  vf sum = zero();
  for (int b = first; b < last; b++) {
    vf w = exp(sub(load(s + b * kLanes), set1(maximum)));
    w = keep_first(w, hi - b * kLanes, 0.0f);
    store(s + b * kLanes, w);
    sum = add(sum, w);
  }
  part[0] = maximum;
  part[1] = hsum(sum);
}

template <class T>
static void attend_as(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks, float* parts,
                      int part_stride) {
  const int start = chunk * kChunk, end = start + kChunk;
  float* scores = scratch;                                 // [n][kChunk]
  float* tails = scratch + kMaxQueries * kChunk;           // [n][tail_blocks * 16]
  int direct = start, tail_low = INT32_MAX, tail_high = -1;  // positions that lie in their own slots; tail slots
  for (int r = 0; r < n; r++) {
    const Query& seen = queries[r];
    direct = at_least(direct, at_most(at_most(seen.prefix, seen.length), end));
    for (int p = at_least(seen.prefix, start); p < at_most(seen.length, end); p++) {
      tail_low = at_most(tail_low, seen.tail[p - seen.prefix]);
      tail_high = at_least(tail_high, seen.tail[p - seen.prefix]);
    }
  }
  score<T>(head, q, n, start / kKeyBlock, (direct - start + kKeyBlock - 1) / kKeyBlock, scores, kChunk);
  const int low_block = tail_high < 0 ? 0 : tail_low / kKeyBlock;
  const int blocks = tail_high < 0 ? 0 : tail_high / kKeyBlock - low_block + 1;
  const int tail_stride = tail_blocks * kKeyBlock;
  if (blocks > 0) score<T>(head, q, n, low_block, blocks, tails, tail_stride);

  const T* values = static_cast<const T*>(head.values);
  const int stride = head.value_stride;
  int joint_low = start, joint_high = end;  // positions that all queries see in their own slots
  for (int r = 0; r < n; r++) {
    const Query& seen = queries[r];
    float* s = scores + r * kChunk;
    float* part = parts + static_cast<size_t>(r) * part_stride;
    for (int d = 0; d < stride; d++) part[kPartHeader + d] = 0.0f;
    const int lo = at_least(seen.first, start), hi = at_most(seen.length, end);
    if (lo >= hi) {  // nothing of this chunk is seen
      part[0] = -__builtin_inff();
      part[1] = 0.0f;
      joint_high = start;
      continue;
    }
    for (int p = at_least(seen.prefix, start); p < hi; p++)
      s[p - start] = tails[r * tail_stride + seen.tail[p - seen.prefix] - low_block * kKeyBlock];
    soften(s, lo - start, hi - start, part);
    if (head.type == KvType::q8)
      for (int p = lo; p < hi; p++) s[p - start] *= head.value_scales[p < seen.prefix ? p : seen.tail[p - seen.prefix]];
    joint_low = at_least(joint_low, lo);
    joint_high = at_most(joint_high, at_most(seen.prefix, hi));
  }
  const size_t next = reinterpret_cast<uintptr_t>(static_cast<const T*>(head.keys) + static_cast<size_t>(start) * head.head_dim) +
                      static_cast<size_t>(kChunk) * head.head_dim * sizeof(T) -
                      reinterpret_cast<uintptr_t>(values + static_cast<size_t>(start) * stride);
  joint_high = at_least(joint_high, joint_low);
  if (joint_high == joint_low) joint_low = joint_high = end;  // then each query alone

  for (int r = 0; r < n; r++) {  // what comes before the joint positions
    const Query& seen = queries[r];
    const int lo = at_least(seen.first, start), stop = at_most(at_most(seen.prefix, at_most(seen.length, end)), joint_low);
    mix<T>(values, stride, lo, stop - lo, scores + r * kChunk, lo - start, 1,
           parts + static_cast<size_t>(r) * part_stride + kPartHeader, part_stride, next);
  }
  mix<T>(values, stride, joint_low, joint_high - joint_low, scores, joint_low - start, n, parts + kPartHeader, part_stride,
         next);
  for (int r = 0; r < n; r++) {  // and what comes after, the tail slot by slot
    const Query& seen = queries[r];
    float* out = parts + static_cast<size_t>(r) * part_stride + kPartHeader;
    const float* w = scores + r * kChunk;
    const int hi = at_most(seen.length, end), split = at_most(seen.prefix, hi);
    mix<T>(values, stride, joint_high, split - joint_high, w, joint_high - start, 1, out, part_stride, next);
    for (int p = at_least(at_least(seen.prefix, start), seen.first); p < hi; p++)
      mix<T>(values, stride, seen.tail[p - seen.prefix], 1, w, p - start, 1, out, part_stride, next);
  }
}

// Floats of scratch that attend needs when tails lie within `tail_blocks` blocks of slots.
static size_t attend_scratch(int tail_blocks) {
  return static_cast<size_t>(kMaxQueries) * (kChunk + static_cast<size_t>(tail_blocks) * kKeyBlock);
}

// q: [head_dim][kMaxQueries], query by query beside each other, already scaled by 1 / sqrt(head_dim).
// parts[r * part_stride ..] = the part of query r over positions [chunk * kChunk, (chunk + 1) * kChunk). n <= kMaxQueries.
static void attend(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks, float* parts,
                   int part_stride) {
  if (head.type == KvType::f32) attend_as<float>(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
  else if (head.type == KvType::f16) attend_as<uint16_t>(head, q, queries, n, chunk, scratch, tail_blocks, parts, part_stride);
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
