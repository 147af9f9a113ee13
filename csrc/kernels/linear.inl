// Linear layers for any number of rows. Included once per instruction set, after its simd header.
//
// A tile holds 16 outputs; a block of rows keeps one accumulator per (row, tile) in registers and walks the inputs in
// order. Each output of each row is the same sequence of operations whatever the number of rows and tiles at hand.
#include "kernels/kernels.h"
#include "kernels/layout.h"
#include "kernels/rows.inl"

namespace forerun {
namespace FORERUN_ISA {

// --- tiles -----------------------------------------------------------------------------------------------------------

// What a block of rows and tiles is computed from.
struct Block {
  const Linear& w;
  int tile;           // the first one
  const char* rows;   // the first prepared row
  size_t row_stride;  // bytes
  float* y;           // first output of the first row
  size_t ldy;
};

static inline const char* row_at(const Block& b, int m) { return b.rows + static_cast<size_t>(m) * b.row_stride; }

static inline void finish_tile(const Block& b, int m, int t, vf sum) {
  if (b.w.bias) sum = add(sum, load(b.w.bias + static_cast<size_t>(b.tile + t) * kTile));
  store(b.y + m * b.ldy + t * kTile, sum);
}

// Asks for `bytes` of the weights that lie `ahead` after p, for the second cache.
static inline void prefetch(const uint8_t* p, int bytes, size_t ahead) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(p + i + ahead, 0, 2);
}

// --- tiles of floats -------------------------------------------------------------------------------------------------

// One step: how many inputs and bytes it takes, and its product.
struct StepF32 {
  static constexpr int kInputs = 1, kBytes = 64;
  using Weights = vf;
  static inline vf weights(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf input(const char* row, int k) { return set1(reinterpret_cast<const float*>(row)[k]); }
  static inline vf product(vf acc, vf w, vf x) { return fma(w, x, acc); }
};
struct StepF16 : StepF32 {
  static constexpr int kBytes = 32;
  static inline vf weights(const uint8_t* p) { return load_f16(reinterpret_cast<const uint16_t*>(p)); }
};
struct StepBf16 {
  static constexpr int kInputs = 2, kBytes = 64;
  using Weights = vb;
  static inline vb weights(const uint8_t* p) { return load_pairs(reinterpret_cast<const uint16_t*>(p)); }
  static inline xb input(const char* row, int k) { return pair_of(row, k); }
  static inline vf product(vf acc, const vb& w, const xb& x) { return dot2(acc, w, x); }
};

template <class Step>
struct FloatTiles {
  static constexpr int kRoom = kRegisters >= 32 ? 24 : 6;  // accumulators
  static constexpr int kMaxRows = kRoom, kManyRows = kRoom < 12 ? kRoom : 12;
  static constexpr int tiles_for(int rows) { return kRoom / rows >= 4 ? 4 : kRoom / rows >= 2 ? 2 : 1; }

  template <int M, int T>
  static void run_together(const Block& b) {
    constexpr int kAhead = T > 1 ? 4096 : 8192;  // bytes of a tile that are asked for before they are read
    const size_t next = b.w.tile_bytes;
    const uint8_t* p = b.w.data + b.tile * next;
    const int steps = (b.w.inputs + Step::kInputs - 1) / Step::kInputs, last = steps - kAhead / Step::kBytes;
    vf acc[M][T];
    FORERUN_UNROLL for (int m = 0; m < M; m++)
      FORERUN_UNROLL for (int t = 0; t < T; t++) acc[m][t] = zero();
    for (int k = 0; k < steps; k++, p += Step::kBytes) {
      const size_t ahead = kAhead + (k < last ? 0 : (T - 1) * next);  // at its end, of the tile that comes T tiles later
      typename Step::Weights w[T];
      FORERUN_UNROLL for (int t = 0; t < T; t++) {
        w[t] = Step::weights(p + t * next);
        if (M > 1) __builtin_prefetch(p + t * next + ahead, 0, 2);
      }
      FORERUN_UNROLL for (int m = 0; m < M; m++) {
        const auto x = Step::input(row_at(b, m), k);
        FORERUN_UNROLL for (int t = 0; t < T; t++) acc[m][t] = Step::product(acc[m][t], w[t], x);
      }
    }
    FORERUN_UNROLL for (int m = 0; m < M; m++)
      FORERUN_UNROLL for (int t = 0; t < T; t++) finish_tile(b, m, t, acc[m][t]);
  }

  // As many tiles at once as registers allow.
  template <int M>
  static void run(Block b, int tiles) {
    constexpr int T = tiles_for(M);
    for (int done = 0; tiles > 0; tiles -= done, b.tile += done, b.y += done * kTile) {
      if (T >= 4 && tiles >= 4) {
        run_together<M, T >= 4 ? 4 : 1>(b);
        done = 4;
      } else if (T >= 2 && tiles >= 2) {
        run_together<M, T >= 2 ? 2 : 1>(b);
        done = 2;
      } else {
        run_together<M, 1>(b);
        done = 1;
      }
    }
  }
};

// --- tiles of integers in groups -------------------------------------------------------------------------------------

// The weights of a group, in eight steps of four inputs.
struct Weights8 {
  static constexpr Format kFormat = Format::q8;
  w8 step[8];
  inline void load_from(const uint8_t* p) {
    for (int s = 0; s < 8; s++) step[s] = load_w8(p + 64 * s);
  }
  static inline const int32_t* start(const RowGroup& x) { return &x.start8; }
};
struct Weights4 {
  static constexpr Format kFormat = Format::q4;
  w4 step[8];
  inline void load_from(const uint8_t* p) {
    for (int s = 0; s < 4; s++) load_w4(p + 64 * s, step[2 * s], step[2 * s + 1]);
  }
  static inline const int32_t* start(const RowGroup& x) { return &x.start4; }
};

// kMin: outputs have offsets; kHalves: each half of a group has its own scales.
template <class Weights, bool kMin, bool kHalves>
struct GroupTiles {
  static constexpr int kMaxRows = kRegisters >= 32 ? 12 : 8, kManyRows = kMaxRows;
  static constexpr int tiles_for(int) { return 1; }
  static constexpr PairLayout kLayout = pair_layout(Weights::kFormat, kMin, kHalves ? kGroup / 2 : kGroup);

  // Steps [kBegin, kEnd) of a group for rows [m, m + L) in lockstep, so that their chains of additions overlap. row(m): the row's group.
  template <int L, int kBegin, int kEnd, class Row>
  static inline void add_rows(Row row, int m, const Weights& w, vf scale, vf* acc) {
    const auto start = [](const RowGroup& r) { return kHalves ? &r.start8_half[kBegin / 4] : Weights::start(r); };
    decltype(begin_sum(w.step[0], nullptr)) sum[L];
    for (int j = 0; j < L; j++) sum[j] = begin_sum(w.step[0], start(row(m + j)));
    FORERUN_UNROLL for (int s = kBegin; s < kEnd; s++)
      for (int j = 0; j < L; j++) sum[j] = dot4(sum[j], w.step[s], row(m + j).q + 4 * s);
    for (int j = 0; j < L; j++) {
      const RowGroup& r = row(m + j);
      acc[m + j] = fma(to_float(end_sum(sum[j], start(r))), mul(scale, set1(r.scale)), acc[m + j]);
    }
  }

  // The same for rows [m, M), as many in lockstep as registers allow.
  template <int M, int m, int kBegin, int kEnd, class Row>
  static inline void add_all(Row row, const Weights& w, const uint8_t* scales, vf* acc) {
    constexpr int blocks = (M - m + kLockstep - 1) / kLockstep, L = (M - m + blocks - 1) / blocks;
    add_rows<L, kBegin, kEnd>(row, m, w, load_f16(reinterpret_cast<const uint16_t*>(scales)), acc);
    if constexpr (m + L < M) add_all<M, m + L, kBegin, kEnd>(row, w, scales, acc);
  }

  // Group g of a pair whose weights lie at p.
  template <int M, class Row>
  static inline void add_group(const uint8_t* p, int g, Row row, vf* acc) {
    const uint8_t* scales = p + kLayout.scales + g * kLayout.scales_of_group;
    Weights w;
    w.load_from(p + g * kLayout.group_weights);
    add_all<M, 0, 0, kHalves ? 4 : 8>(row, w, scales, acc);
    if (kHalves) add_all<M, 0, 4, 8>(row, w, scales + kTile * 2, acc);
  }

  // What the first eight bits of a row's refined groups left over. tile: its weights, which are near now.
  static inline vf add_rest(const char* row, int inputs, const uint8_t* tile, vf acc) {
    for (const RestGroup* rest = rest_of(row, inputs); rest->group >= 0; rest++)
      add_group<1>(tile + rest->group / 2 * kLayout.bytes, rest->group % 2, [rest](int) -> const RowGroup& { return rest->kept; }, &acc);
    return acc;
  }

  template <int M>
  static void run(Block b, int tiles) {
    const int pairs = pairs_of(b.w.inputs);
    for (; tiles > 0; tiles--, b.tile++, b.y += kTile) {
      const uint8_t *tile = b.w.data + b.tile * b.w.tile_bytes, *p = tile;
      const char* x = b.rows;
      const auto pair = [&](int m) -> const RowPair& { return *reinterpret_cast<const RowPair*>(x + m * b.row_stride); };
      vf acc[M];
      for (int m = 0; m < M; m++) acc[m] = zero();
      for (int i = 0; i < pairs; i++, p += kLayout.bytes, x += sizeof(RowPair)) {
        // The machine itself keeps up with 8-bit weights for one row.
        if (M > 1 || Weights::kFormat == Format::q4) prefetch(p, kLayout.bytes, 6144);
        for (int g = 0; g < 2; g++)
          add_group<M>(p, g, [&](int m) -> const RowGroup& { return pair(m).group[g]; }, acc);
        if (!kMin) continue;
        const vb offsets = load_pairs(reinterpret_cast<const uint16_t*>(p + kLayout.offsets));
        // Unrolled: of a loop in plain C++, GCC 12 makes vectors of two rows' sums, and reads those of a row behind the last.
        FORERUN_UNROLL for (int m = 0; m < M; m++) acc[m] = dot2(acc[m], offsets, pair_of(&pair(m).sum, 0));
      }
      const vf unit = set1(b.w.unit[b.tile]);
      for (int m = 0; m < M; m++) store(b.y + m * b.ldy, acc[m]);  // sums leave their registers before rows are counted
      for (int m = 0; m < M; m++) finish_tile(b, m, 0, mul(add_rest(row_at(b, m), b.w.inputs, tile, load(b.y + m * b.ldy)), unit));
    }
  }
};

// --- rows and tiles in blocks ----------------------------------------------------------------------------------------

template <class Tiles, int M>
static void run_rows(const Block& b, int rows, int tiles) {
  if constexpr (M > 1) {
    if (rows != M) return run_rows<Tiles, M - 1>(b, rows, tiles);
  }
  Tiles::template run<M>(b, tiles);
}

// Up to kMaxRows rows go over all tiles together. More take turns at a few tiles, in blocks of up to kManyRows, so that weights
// come from memory once and stay near for all rows.
template <class Tiles>
static void run_all(const Linear& w, const void* rows, int n, int tile_begin, int tile_end, float* y, size_t ldy) {
  const size_t stride = row_bytes(row_kind(w.format), w.inputs);
  const int blocks = n <= Tiles::kMaxRows ? 1 : (n + Tiles::kManyRows - 1) / Tiles::kManyRows;
  const int step = blocks == 1 ? tile_end - tile_begin : Tiles::tiles_for((n + blocks - 1) / blocks);
  for (int tile = tile_begin; tile < tile_end; tile += step) {
    const int tiles = tile_end - tile < step ? tile_end - tile : step;
    for (int i = 0, m = 0; i < blocks; i++) {
      const int count = (n - m) / (blocks - i);
      const Block b{w, tile, static_cast<const char*>(rows) + m * stride, stride,
                    y + m * ldy + static_cast<size_t>(tile - tile_begin) * kTile, ldy};
      run_rows<Tiles, Tiles::kMaxRows>(b, count, tiles);
      m += count;
    }
  }
}

static void linear(const Linear& w, const void* rows, int n, int tile_begin, int tile_end, float* y, size_t ldy) {
  const auto run = [&](auto tiles) { run_all<decltype(tiles)>(w, rows, n, tile_begin, tile_end, y, ldy); };
  switch (w.format) {
    case Format::f32: return run(FloatTiles<StepF32>());
    case Format::f16: return run(FloatTiles<StepF16>());
    case Format::bf16: return run(FloatTiles<StepBf16>());
    case Format::q8:
      if (w.group != kGroup) return run(GroupTiles<Weights8, false, true>());
      if (w.has_min) return run(GroupTiles<Weights8, true, false>());
      return run(GroupTiles<Weights8, false, false>());
    case Format::q4:
      if (w.has_min) return run(GroupTiles<Weights4, true, false>());
      return run(GroupTiles<Weights4, false, false>());
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
