// Attention over keys and values that are widened to f32 and multiplied there: f32 and f16. Included by attention.inl.
namespace forerun {
namespace FORERUN_ISA {

static inline vf load_kv(const float* p) { return load(p); }
static inline vf load_kv(const uint16_t* p) { return load_f16(p); }

// --- scores ----------------------------------------------------------------------------------------------------------

// scores[r * stride + 16 * b + lane] = q_r . key, for `blocks` blocks of keys. q: [dim][kMaxQueries], from query r on.
// values: of the same slots. They are wanted soon, and come while scores are computed: a forward's weights have driven them
// out of the caches since the last token.
template <class T, int R, int B>
static inline void score_blocks(const float* q, const T* keys, const T* values, int dim, float* scores, int stride) {
  constexpr int kBytes = B * kKeyBlock * static_cast<int>(sizeof(T));  // of keys in a step, and about as many of values
  vf acc[R][B];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = zero();
  for (int d = 0; d < dim; d++) {
    vf k[B];
    FORERUN_UNROLL for (int b = 0; b < B; b++) k[b] = load_kv(keys + (static_cast<size_t>(b) * dim + d) * kKeyBlock);
    prefetch_step<kBytes, 3>(keys, static_cast<size_t>(dim) * kBytes, d);  // the next blocks
    prefetch_step<kBytes, 2>(values, 0, d);
    FORERUN_UNROLL for (int r = 0; r < R; r++)
      FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = fma(k[b], set1(q[d * kMaxQueries + r]), acc[r][b]);
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) store(scores + r * stride + b * kKeyBlock, acc[r][b]);
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

// Scores of blocks [first_block, first_block + blocks) for n queries.
template <class T>
static void score(const KvHead& head, const float* q, int n, int first_block, int blocks, float* scores, int stride) {
  for_pages(first_block, blocks, [&](int at, int some, int done) {
    const T *keys = keys_at<T>(head, at * kKeyBlock), *values = values_at<T>(head, at * kKeyBlock);
    for_rows(n, [&](auto rows, int r) {
      score_rows<T, decltype(rows)::value>(q + r, keys, values, head.head_dim, head.value_stride, some,
                                           scores + r * stride + done * kKeyBlock, stride);
    });
  });
}

// --- weighted values -------------------------------------------------------------------------------------------------

// out[r][16 t ..] += sum over i in [0, count) of weights[r * kChunk + i] * values[i], position after position.
// next: bytes from a value to what is asked for with it, the next chunk's keys.
template <class T, int R, int V>
static inline void mix_rows(const T* values, size_t value_stride, int count, const float* weights, float* out, int out_stride,
                            size_t next) {
  constexpr int kBytes = V * kLanes * static_cast<int>(sizeof(T));
  vf acc[R][V];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = load(out + r * out_stride + t * kLanes);
  for (int i = 0; i < count; i++) {
    vf v[V];
    FORERUN_UNROLL for (int t = 0; t < V; t++) v[t] = load_kv(values + i * value_stride + t * kLanes);
    prefetch_step<kBytes, 3>(values, (i + 8) * value_stride * sizeof(T), 0);
    prefetch_step<kBytes, 2>(values, i * value_stride * sizeof(T) + next, 0);
    FORERUN_UNROLL for (int r = 0; r < R; r++) {
      const vf w = set1(weights[r * kChunk + i]);
      FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = fma(v[t], w, acc[r][t]);
    }
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) store(out + r * out_stride + t * kLanes, acc[r][t]);
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
static void mix(const KvHead& head, int slot, int count, const float* weights, int at, int n, float* out, int out_stride, size_t next) {
  if (count <= 0) return;
  const T* values = values_at<T>(head, slot);
  weights += at;
  for_rows(n, [&](auto rows, int r) {
    mix_dims<T, decltype(rows)::value>(values, head.value_stride, count, weights + r * kChunk, out + r * out_stride, out_stride, next);
  });
}

// --- one chunk -------------------------------------------------------------------------------------------------------

template <class T>
static void attend_as(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks,
                      float* sums) {
  const int start = chunk * kChunk, end = start + kChunk;
  float* scores = scratch;                                 // [n][kChunk]
  float* tails = scratch + kMaxQueries * kChunk;           // [n][tail_blocks * 16]
  const int tail_stride = tail_blocks * kKeyBlock;
  const Span span = span_of(queries, n, start, end);
  score<T>(head, q, n, start / kKeyBlock, (span.direct - start + kKeyBlock - 1) / kKeyBlock, scores, kChunk);
  if (span.blocks > 0) score<T>(head, q, n, span.low_block, span.blocks, tails, tail_stride);

  const int stride = head.value_stride, sum_stride = kSumHeader + stride;
  int joint_low = start, joint_high = end;  // positions that all queries see in their own slots
  for (int r = 0; r < n; r++) {
    const Query& seen = queries[r];
    float* s = scores + r * kChunk;
    const int lo = at_least(seen.first, start), hi = at_most(seen.length, end);
    if (lo >= hi) {  // nothing of this chunk is seen
      joint_high = start;
      continue;
    }
    take_tail_scores(seen, span, tails + r * tail_stride, start, hi, s);
    soften<Weights::exact>(s, lo - start, hi - start, sums + r * sum_stride, stride);
    joint_low = at_least(joint_low, lo);
    joint_high = at_most(joint_high, at_most(seen.prefix, hi));
  }
  const size_t next = to_next_keys(head);
  joint_high = at_least(joint_high, joint_low);
  if (joint_high == joint_low) joint_low = joint_high = end;  // then each query alone

  for (int r = 0; r < n; r++) {  // what comes before the joint positions
    const Query& seen = queries[r];
    const int lo = at_least(seen.first, start), stop = at_most(at_most(seen.prefix, at_most(seen.length, end)), joint_low);
    mix<T>(head, lo, stop - lo, scores + r * kChunk, lo - start, 1,
           sums + r * sum_stride + kSumHeader, sum_stride, next);
  }
  mix<T>(head, joint_low, joint_high - joint_low, scores, joint_low - start, n, sums + kSumHeader, sum_stride,
         next);
  for (int r = 0; r < n; r++) {  // and what comes after, the tail slot by slot
    const Query& seen = queries[r];
    float* out = sums + r * sum_stride + kSumHeader;
    const float* w = scores + r * kChunk;
    const int hi = at_most(seen.length, end), split = at_most(seen.prefix, hi);
    mix<T>(head, joint_high, split - joint_high, w, joint_high - start, 1, out, sum_stride, next);
    for (int p = at_least(at_least(seen.prefix, start), seen.first); p < hi; p++)
      mix<T>(head, seen.tail[p - seen.prefix], 1, w, p - start, 1, out, sum_stride, next);
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
