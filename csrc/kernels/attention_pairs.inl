// Attention over keys and values in bf16, multiplied two by two: keys by pairs of dimensions, values by pairs of positions
// 2i, 2i + 1. Where the set has no such instruction the products are those of f32. Included by attention.inl.
//
// A pair that a query sees whole, in its own slots, is read as it lies; any other one is put together first, with zeros
// for a position that is not seen. Both ways the same numbers are multiplied.
namespace forerun {
namespace FORERUN_ISA {

// Query i, as score_pair_blocks reads it: [key_rows / 2][kMaxQueries] pairs.
static void pack_pairs(const KvHead& head, const float* q, int i, float* packed) {
  constexpr int kFloats = kBf16Rows ? 1 : 2;  // of a pair
  const int pairs = key_rows(head.type, head.head_dim) / 2;
  float some[kLanes];
  for (int p = 0; p < pairs; p += kLanes / 2) {
    store_pairs(some, 0, load(q + 2 * p));
    for (int k = 0; k < at_most(kLanes / 2, pairs - p); k++)
      __builtin_memcpy(packed + ((p + k) * kMaxQueries + i) * kFloats, some + k * kFloats, kFloats * sizeof(float));
  }
}

// --- scores ----------------------------------------------------------------------------------------------------------

// scores[r * stride + 16 * b + lane] = q_r . key, for B blocks of keys and queries [first, first + R) of q.
// values: of the same slots, asked for while scores are computed, as in score_blocks.
template <int R, int B>
static inline void score_pair_blocks(const float* q, int first, const uint16_t* keys, const uint16_t* values, int pairs, float* scores,
                                     int stride) {
  constexpr int kBytes = B * kKeyBlock * 4;
  vf acc[R][B];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = zero();
  for (int p = 0; p < pairs; p++) {
    vb k[B];
    FORERUN_UNROLL for (int b = 0; b < B; b++) k[b] = load_pairs(keys + (static_cast<size_t>(b) * pairs + p) * 2 * kKeyBlock);
    prefetch_step<kBytes, 3>(keys, static_cast<size_t>(pairs) * kBytes, p);
    prefetch_step<kBytes, 2>(values, 0, p);
    FORERUN_UNROLL for (int r = 0; r < R; r++) {
      const xb x = pair_of(q, p * kMaxQueries + first + r);
      FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = dot2(acc[r][b], k[b], x);
    }
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) store(scores + r * stride + b * kKeyBlock, acc[r][b]);
}

template <int R>
static void score_pair_rows(const KvHead& head, const float* q, int first, int block, int blocks, float* scores, int stride) {
  constexpr int kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : 1;
  const int pairs = key_rows(head.type, head.head_dim) / 2;
  int b = 0;
  for (; b + kWide <= blocks; b += kWide)
    score_pair_blocks<R, kWide>(q, first, keys_at<uint16_t>(head, (block + b) * kKeyBlock), values_at<uint16_t>(head, (block + b) * kKeyBlock), pairs,
                                scores + b * kKeyBlock, stride);
  for (; b < blocks; b++)
    score_pair_blocks<R, 1>(q, first, keys_at<uint16_t>(head, (block + b) * kKeyBlock), values_at<uint16_t>(head, (block + b) * kKeyBlock), pairs,
                            scores + b * kKeyBlock, stride);
}

static void score_pairs(const KvHead& head, const float* q, int n, int block, int blocks, float* scores, int stride) {
  for_pages(block, blocks, [&](int at, int some, int done) {
    for_rows(n, [&](auto rows, int r) {
      score_pair_rows<decltype(rows)::value>(head, q, r, at, some, scores + r * stride + done * kKeyBlock, stride);
    });
  });
}

// --- weighted values -------------------------------------------------------------------------------------------------

// out[r][16 t ..] += sum over pairs i in [0, count) of weights r * kChunk .. [2 i, 2 i + 1] times values' pair i.
template <int R, int V>
static inline void mix_pair_rows(const uint16_t* values, size_t pair_stride, int count, const float* weights, int at, float* out,
                                 int out_stride, size_t next) {
  constexpr int kBytes = V * kLanes * 4;
  vf acc[R][V];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = load(out + r * out_stride + t * kLanes);
  for (int i = 0; i < count; i++) {
    vb v[V];
    FORERUN_UNROLL for (int t = 0; t < V; t++) v[t] = load_pairs(values + i * pair_stride + 2 * t * kLanes);
    prefetch_step<kBytes, 3>(values, (i + 4) * pair_stride * sizeof(uint16_t), 0);
    prefetch_step<kBytes, 2>(values, i * pair_stride * sizeof(uint16_t) + next, 0);
    FORERUN_UNROLL for (int r = 0; r < R; r++) {
      const xb w = pair_of(weights + r * kChunk, at + i);
      FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = dot2(acc[r][t], v[t], w);
    }
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) store(out + r * out_stride + t * kLanes, acc[r][t]);
}

template <int R>
static void mix_pair_dims(const uint16_t* values, int value_stride, int count, const float* weights, int at, float* out, int out_stride,
                          size_t next) {
  constexpr int kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : (R <= 2 ? 2 : 1);
  int t = 0;
  for (; t + kWide <= value_stride / kLanes; t += kWide)
    mix_pair_rows<R, kWide>(values + 2 * t * kLanes, 2 * static_cast<size_t>(value_stride), count, weights, at, out + t * kLanes,
                            out_stride, next);
  for (; t < value_stride / kLanes; t++)
    mix_pair_rows<R, 1>(values + 2 * t * kLanes, 2 * static_cast<size_t>(value_stride), count, weights, at, out + t * kLanes, out_stride,
                        next);
}

// out[r] += pairs [0, count) of `values`, weighted with pairs at, at + 1, ... of the weights, for n queries.
static void mix_pairs(const uint16_t* values, int value_stride, int count, const float* weights, int at, int n, float* out, int out_stride,
                      size_t next) {
  if (count <= 0) return;
  for_rows(n, [&](auto rows, int r) {
    mix_pair_dims<decltype(rows)::value>(values, value_stride, count, weights + r * kChunk, at, out + r * out_stride, out_stride, next);
  });
}

// --- one chunk -------------------------------------------------------------------------------------------------------

// What one query sees of a chunk.
struct Seen {
  int low, high;            // positions
  int low_pair, high_pair;  // pairs that lie in their own slots and are seen whole
};
static Seen seen_of(const Query& query, int start, int end) {
  const int low = at_least(query.first, start), high = at_most(query.length, end);
  const int low_pair = (low + 1) / 2;
  return {low, high, low_pair, at_least(at_most(query.prefix, high) / 2, low_pair)};
}

static inline uint32_t two_at(const uint16_t* p) {
  uint32_t two;
  __builtin_memcpy(&two, p, 4);
  return two;
}

// The values of positions 2 pair and 2 pair + 1 as a query sees them, side by side: [value_stride][2].
static void join_values(const KvHead& head, const Query& query, const Seen& seen, int pair, uint16_t* joined) {
  __builtin_memset(joined, 0, static_cast<size_t>(head.value_stride) * 4);
  for (int p = at_least(2 * pair, seen.low); p < at_most(2 * pair + 2, seen.high); p++) {
    const int slot = p < query.prefix ? p : query.tail[p - query.prefix], from = slot % 2 * 16, to = p % 2 * 16;
    const uint16_t* values = values_at<uint16_t>(head, slot);
    for (int d = 0; d < head.value_stride; d++) {
      const uint32_t two = two_at(joined + 2 * d) | (two_at(values + 2 * d) >> from & 0xffff) << to;
      __builtin_memcpy(joined + 2 * d, &two, 4);
    }
  }
}

static inline bool same_sight(const Query& a, const Query& b) {
  return a.tail == b.tail && a.prefix == b.prefix && a.length == b.length && a.first == b.first;
}

static void attend_pairs(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks,
                         float* sums) {
  const int start = chunk * kChunk, end = start + kChunk, tail_stride = tail_blocks * kKeyBlock;
  const int stride = head.value_stride, sum_stride = kSumHeader + stride;
  float* scores = scratch;                            // [n][kChunk], then the weights by pairs
  float* tails = scratch + kMaxQueries * kChunk;      // [n][tail_blocks * 16]
  uint16_t* joined = reinterpret_cast<uint16_t*>(tails + kMaxQueries * tail_stride);  // [value_stride][2]
  const Span span = span_of(queries, n, start, end);
  score_pairs(head, q, n, start / kKeyBlock, (span.direct - start + kKeyBlock - 1) / kKeyBlock, scores, kChunk);
  if (span.blocks > 0) score_pairs(head, q, n, span.low_block, span.blocks, tails, tail_stride);

  int joint_low = start / 2, joint_high = end / 2;  // pairs that all queries see whole, in their own slots
  for (int r = 0; r < n; r++) {
    const Query& query = queries[r];
    const Seen seen = seen_of(query, start, end);
    float* s = scores + r * kChunk;
    joint_low = at_least(joint_low, seen.low_pair);
    joint_high = at_most(joint_high, seen.high_pair);
    if (seen.low >= seen.high) {
      joint_high = start / 2;
      continue;
    }
    take_tail_scores(query, span, tails + r * tail_stride, start, seen.high, s);
    soften<Weights::pairs>(s, seen.low - start, seen.high - start, sums + r * sum_stride, stride);
  }
  const size_t next = to_next_keys(head);
  float* out = sums + kSumHeader;
  const bool joint = joint_high > joint_low;
  // Pairs [low, high) of queries [r, r + same), which see the same.
  const auto mix_some = [&](int r, int same, const Seen& seen, int low, int high) {
    for (int pair = low; pair < high;) {
      const bool whole = pair >= seen.low_pair && pair < seen.high_pair;
      const int count = whole ? at_most(high, seen.high_pair) - pair : 1;
      if (!whole) join_values(head, queries[r], seen, pair, joined);
      mix_pairs(whole ? values_at<uint16_t>(head, 2 * pair) : joined, stride, count, scores + r * kChunk,
                pair - start / 2, same, out + r * sum_stride, sum_stride, next);
      pair += count;
    }
  };
  const auto for_sights = [&](const auto& mix) {
    for (int r = 0, same; r < n; r += same) {
      for (same = 1; r + same < n && same_sight(queries[r], queries[r + same]);) same++;
      const Seen seen = seen_of(queries[r], start, end);
      if (seen.low < seen.high) mix(r, same, seen);
    }
  };
  if (joint) for_sights([&](int r, int same, const Seen& seen) { mix_some(r, same, seen, seen.low / 2, joint_low); });
  if (joint) mix_pairs(values_at<uint16_t>(head, 2 * joint_low), stride, joint_high - joint_low, scores, joint_low - start / 2, n, out,
                       sum_stride, next);
  for_sights([&](int r, int same, const Seen& seen) {
    mix_some(r, same, seen, joint ? joint_high : seen.low / 2, (seen.high + 1) / 2);
  });
}

}  // namespace FORERUN_ISA
}  // namespace forerun
