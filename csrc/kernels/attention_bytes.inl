// Attention over keys and values in 8 bits with a scale each, multiplied two by two with 16-bit numbers: keys by pairs of dimensions
// with queries, values by pairs of slots with softmax weights. Sums of such products are exact integers, in whatever order they
// are added; so a slot that a query does not see is simply given the weight zero. Included by attention.inl.
namespace forerun {
namespace FORERUN_ISA {

// What a query is rounded to, so that the sum of products with `dim` 8-bit numbers stays below 2^31.
static inline float query_limit(int dim) { return static_cast<float>(at_most(32767, INT32_MAX / 127 / dim)); }
constexpr float kWeightLimit = 32767.0f;  // 127 of a chunk's weights and values: 128 * 127 * 32767 < 2^31

// Query i, as score_byte_blocks reads it: [key_rows / 2][kMaxQueries] pairs, then what the numbers are multiples of.
static void pack_words(const KvHead& head, const float* q, int i, float* packed) {
  const int pairs = key_rows(head.type, head.head_dim) / 2;
  const float limit = query_limit(head.head_dim), top = absolute_maximum(q, head.value_stride);
  const float inverse = top > 1e-30f ? limit / top : 0.0f;
  float some[kLanes / 2];
  vf sum = zero();
  for (int p = 0; p < pairs; p += kLanes / 2) {
    const vf x = load(q + 2 * p);
    sum = add(sum, mul(x, zero()));
    store_words(some, mul(x, set1(inverse)));
    for (int k = 0; k < at_most(kLanes / 2, pairs - p); k++)
      __builtin_memcpy(packed + (p + k) * kMaxQueries + i, some + k, sizeof(float));
  }
  packed[pairs * kMaxQueries + i] = top / limit + hsum(sum);  // NaN, if a number is NaN or infinite
}

// --- scores ----------------------------------------------------------------------------------------------------------

// scores[r * stride + 16 * b + lane] = the product of query first + r and a key in units of both scales, for B blocks of keys.
// values: of the same slots, asked for while scores are computed, as in score_blocks.
template <int R, int B>
static inline void score_byte_blocks(const float* q, int first, const int8_t* keys, const int8_t* values, const float* key_scales,
                                     int pairs, float* scores, int stride) {
  constexpr int kBytes = B * kKeyBlock * 2;
  vi acc[R][B];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = izero();
  for (int p = 0; p < pairs; p++) {
    vw k[B];
    FORERUN_UNROLL for (int b = 0; b < B; b++) k[b] = load_words(keys + (static_cast<size_t>(b) * pairs + p) * 2 * kKeyBlock);
    prefetch_step<kBytes, 3>(keys, static_cast<size_t>(pairs) * kBytes, p);
    prefetch_step<kBytes, 2>(values, 0, p);
    FORERUN_UNROLL for (int r = 0; r < R; r++)
      FORERUN_UNROLL for (int b = 0; b < B; b++) acc[r][b] = dot_words(acc[r][b], k[b], q + p * kMaxQueries + first + r);
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int b = 0; b < B; b++) store_int(scores + r * stride + b * kKeyBlock, acc[r][b]);
  for (int r = 0; r < R; r++) {  // in a loop of its own, or compilers run out of registers in the one above
    const vf scale = set1(q[pairs * kMaxQueries + first + r]);
    for (int b = 0; b < B; b++) {
      float* s = scores + r * stride + b * kKeyBlock;
      store(s, mul(to_float(load_int(s)), mul(scale, load(key_scales + b * kKeyBlock))));
    }
  }
}

template <int R>
static void score_byte_rows(const KvHead& head, const float* q, int first, int block, int blocks, float* scores, int stride) {
  constexpr int kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : 1;
  const int pairs = key_rows(head.type, head.head_dim) / 2;
  const auto some = [&](auto wide, int b) {
    const int slot = (block + b) * kKeyBlock;
    score_byte_blocks<R, decltype(wide)::value>(q, first, keys_at<int8_t>(head, slot), values_at<int8_t>(head, slot),
                                                scale_at(head, head.key_scales, slot), pairs, scores + b * kKeyBlock, stride);
  };
  int b = 0;
  for (; b + kWide <= blocks; b += kWide) some(RowCount<kWide>(), b);
  for (; b < blocks; b++) some(RowCount<1>(), b);
}

static void score_bytes(const KvHead& head, const float* q, int n, int block, int blocks, float* scores, int stride) {
  for_pages(block, blocks, [&](int at, int some, int done) {
    for_rows(n, [&](auto rows, int r) {
      score_byte_rows<decltype(rows)::value>(head, q, r, at, some, scores + r * stride + done * kKeyBlock, stride);
    });
  });
}

// --- weighted values -------------------------------------------------------------------------------------------------

// out[r][16 t ..] += sum over pairs i in [0, count) of the two weights at weights[r * weight_stride + i] times values' pair i.
template <int R, int V>
static inline void mix_byte_rows(const int8_t* values, int value_stride, int count, const float* weights, int weight_stride, float* out,
                                 size_t next) {
  constexpr int kBytes = V * kLanes * 2;
  vi acc[R][V];
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = load_int(out + r * value_stride + t * kLanes);
  for (int i = 0; i < count; i++) {
    const size_t at = static_cast<size_t>(i) * 2 * value_stride;
    vw v[V];
    FORERUN_UNROLL for (int t = 0; t < V; t++) v[t] = load_words(values + at + 2 * t * kLanes);
    prefetch_step<kBytes, 3>(values, at + 8 * static_cast<size_t>(value_stride), 0);
    prefetch_step<kBytes, 2>(values, at + next, 0);
    FORERUN_UNROLL for (int r = 0; r < R; r++)
      FORERUN_UNROLL for (int t = 0; t < V; t++) acc[r][t] = dot_words(acc[r][t], v[t], weights + r * weight_stride + i);
  }
  FORERUN_UNROLL for (int r = 0; r < R; r++)
    FORERUN_UNROLL for (int t = 0; t < V; t++) store_int(out + r * value_stride + t * kLanes, acc[r][t]);
}

// out[r] += pairs [0, count) of a page from slot `slot` on (which is even), weighted, for n queries.
static void mix_bytes(const KvHead& head, int slot, int count, const float* weights, int weight_stride, int n, float* out, size_t next) {
  const int8_t* values = values_at<int8_t>(head, slot);
  for_rows(n, [&](auto rows, int r) {
    constexpr int R = decltype(rows)::value, kWide = kRegisters >= 32 ? (R <= 6 ? 4 : 2) : (R <= 2 ? 2 : 1);
    const int stride = head.value_stride, vectors = stride / kLanes;
    const float* w = weights + r * weight_stride;
    float* to = out + r * stride;
    int t = 0;
    for (; t + kWide <= vectors; t += kWide)
      mix_byte_rows<R, kWide>(values + 2 * t * kLanes, stride, count, w, weight_stride, to + t * kLanes, next);
    for (; t < vectors; t++) mix_byte_rows<R, 1>(values + 2 * t * kLanes, stride, count, w, weight_stride, to + t * kLanes, next);
  });
}

// --- one chunk -------------------------------------------------------------------------------------------------------

// Softmax weights of positions [lo, hi), w [kChunk] from position `start` on, become 16-bit numbers in place, those of the tail where
// its slots are in `tails`; each times its value's scale. Returns what they are multiples of.
static float round_weights(const KvHead& head, const Query& query, const Span& span, int start, int lo, int hi, float* w, float* tails) {
  const int direct = at_most(query.prefix, hi);
  const float* scales = scale_at(head, head.value_scales, start);
  if (lo == start && direct == start + kChunk) {
    for (int i = 0; i < kChunk; i += kLanes) store(w + i, mul(load(w + i), load(scales + i)));
  } else {
    for (int p = lo; p < direct; p++) w[p - start] *= scales[p - start];
    for (int p = at_least(query.prefix, lo); p < hi; p++) w[p - start] *= *scale_at(head, head.value_scales, query.tail[p - query.prefix]);
    __builtin_memset(w, 0, sizeof(float) * static_cast<size_t>(lo - start));
    __builtin_memset(w + hi - start, 0, sizeof(float) * static_cast<size_t>(start + kChunk - hi));
  }
  vf tops = zero();
  for (int i = 0; i < kChunk; i += kLanes) tops = max(load(w + i), tops);
  const float top = hmax(tops);
  const float inverse = top > 1e-30f ? kWeightLimit / top : 0.0f;
  for (int i = 0; i < kChunk; i += kLanes) store_words(w + i / 2, mul(load(w + i), set1(inverse)));

  const auto word = [](float* words, int i) { return reinterpret_cast<char*>(words) + 2 * static_cast<long>(i); };
  __builtin_memset(tails, 0, static_cast<size_t>(span.blocks) * kKeyBlock * 2);
  for (int p = at_least(query.prefix, lo); p < hi; p++) {
    __builtin_memcpy(word(tails, query.tail[p - query.prefix] - span.low_block * kKeyBlock), word(w, p - start), 2);
    __builtin_memset(word(w, p - start), 0, 2);
  }
  return top / kWeightLimit;
}

static void attend_bytes(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks,
                         float* sums) {
  const int start = chunk * kChunk, end = start + kChunk, stride = head.value_stride, tail_stride = tail_blocks * kKeyBlock;
  float* scores = scratch;                        // [n][kChunk], then the weights in 16 bits
  float* tails = scratch + kMaxQueries * kChunk;  // [n][tail_blocks * 16]
  float* mixed = tails + kMaxQueries * tail_stride;  // [n][value_stride] integers
  const Span span = span_of(queries, n, start, end);
  score_bytes(head, q, n, start / kKeyBlock, (span.direct - start + kKeyBlock - 1) / kKeyBlock, scores, kChunk);
  if (span.blocks > 0) score_bytes(head, q, n, span.low_block, span.blocks, tails, tail_stride);

  float units[kMaxQueries];
  for (int r = 0; r < n; r++) {
    const Query& query = queries[r];
    float* s = scores + r * kChunk;
    const int lo = at_least(query.first, start), hi = at_least(at_most(query.length, end), lo);
    if (lo < hi) {
      take_tail_scores(query, span, tails + r * tail_stride, start, hi, s);
      soften<Weights::rough>(s, lo - start, hi - start, sums + r * (kSumHeader + stride), stride);
    }
    units[r] = round_weights(head, query, span, start, at_most(lo, end), at_most(hi, end), s, tails + r * tail_stride);
  }
  const size_t next = to_next_keys(head);
  __builtin_memset(mixed, 0, sizeof(float) * static_cast<size_t>(n) * stride);
  mix_bytes(head, start, (span.direct - start + 1) / 2, scores, kChunk, n, mixed, next);
  for_pages(span.low_block, span.blocks, [&](int block, int some, int done) {
    mix_bytes(head, block * kKeyBlock, some * kKeyBlock / 2, tails + done * kKeyBlock / 2, tail_stride, n, mixed, next);
  });
  for (int r = 0; r < n; r++) {
    float* out = sums + r * (kSumHeader + stride) + kSumHeader;
    for (int d = 0; d < stride; d += kLanes) store(out + d, fma(to_float(load_int(mixed + r * stride + d)), set1(units[r]), load(out + d)));
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
