// Linear layers for any number of rows. Included once per instruction set, after its simd header.
//
// A tile holds 16 outputs; a block of rows keeps one accumulator per (row, tile) in registers and walks the inputs in
// order. Each output of each row is the same sequence of operations whatever the number of rows and tiles at hand.
#include "kernels/kernels.h"
#include "kernels/layout.h"

namespace forerun {
namespace FORERUN_ISA {

// --- rows ------------------------------------------------------------------------------------------------------------

static RowKind row_kind(Format format) {
  if (format == Format::q8 || format == Format::q4) return RowKind::q8;
  return format == Format::bf16 && kBf16Rows ? RowKind::bf16 : RowKind::f32;
}

static size_t row_bytes(RowKind kind, int inputs) {
  const size_t padded = static_cast<size_t>((inputs + kGroup - 1) / kGroup) * kGroup;
  if (kind == RowKind::q8) return padded / kGroup * sizeof(RowGroup);
  return padded * (kind == RowKind::bf16 ? 2 : 4);
}

// Inputs at, a group's worth of them, zeros after `count`.
struct GroupOfInputs {
  vf low, high;
};
static inline GroupOfInputs load_group(const float* x, int count) {
  if (count >= kGroup) return {load(x), load(x + kLanes)};
  alignas(64) float padded[kGroup] = {};
  for (int i = 0; i < count; i++) padded[i] = x[i];
  return {load(padded), load(padded + kLanes)};
}

static inline int32_t sum_of_half(const int8_t* q) {
  int32_t sum = 0;
  for (int i = 0; i < kGroup / 2; i++) sum += q[i];
  return sum;
}

// 8 bits with absmax / 127 as the scale; a group with anything that is not finite gets a scale that is not finite.
static inline void quantise_group(const GroupOfInputs& x, RowGroup* group) {
  const float top = hmax(max(abs(x.low), abs(x.high)));
  const float poison = hsum(add(mul(x.low, zero()), mul(x.high, zero())));
  const float inverse = top > 1e-30f ? 127.0f / top : 0.0f;
  store_s8(group->q, mul(x.low, set1(inverse)));
  store_s8(group->q + kLanes, mul(x.high, set1(inverse)));
  const int32_t low = sum_of_half(group->q), high = sum_of_half(group->q + kLanes);
  group->scale = top / 127.0f + poison;
  group->weighted = group->scale * static_cast<float>(low + high);
  group->start4 = -8 * (low + high);
  group->start8 = kBiased8 ? -128 * (low + high) : 0;
  group->start8_half[0] = kBiased8 ? -128 * low : 0;
  group->start8_half[1] = kBiased8 ? -128 * high : 0;
}

static void prepare(RowKind kind, const float* x, int inputs, int begin, int end, void* row) {
  (void)inputs;
  for (int at = begin; at < end; at += kGroup) {
    const GroupOfInputs g = load_group(x + (at - begin), end - at);
    if (kind == RowKind::q8) {
      quantise_group(g, static_cast<RowGroup*>(row) + at / kGroup);
    } else if (kind == RowKind::bf16) {
      store_bf16(static_cast<uint16_t*>(row) + at, g.low);
      store_bf16(static_cast<uint16_t*>(row) + at + kLanes, g.high);
    } else {
      store(static_cast<float*>(row) + at, g.low);
      store(static_cast<float*>(row) + at + kLanes, g.high);
    }
  }
}

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

static constexpr int kMaxRows = kRegisters >= 32 ? 12 : 6;
constexpr int tiles_for(int rows) {
  const int room = (kRegisters >= 32 ? 24 : 6) / rows;
  return room >= 4 ? 4 : room >= 2 ? 2 : 1;
}

static inline const char* row_at(const Block& b, int m) { return b.rows + static_cast<size_t>(m) * b.row_stride; }
static inline vf broadcast(const float* p) { return set1(*p); }
static inline vi broadcast(const int32_t* p) { return iset1(*p); }

static inline void finish_tile(const Block& b, int m, int t, vf sum) {
  if (b.w.bias) sum = add(sum, load(b.w.bias + static_cast<size_t>(b.tile + t) * kTile));
  store(b.y + m * b.ldy + t * kTile, sum);
}

// One step of the float formats: how many inputs and bytes it takes, and its product.
struct StepF32 {
  static constexpr int kInputs = 1, kBytes = 64;
  using Weights = vf;
  static inline vf weights(const uint8_t* p) { return load(reinterpret_cast<const float*>(p)); }
  static inline vf input(const char* row, int k) { return broadcast(reinterpret_cast<const float*>(row) + k); }
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
  static constexpr bool kWide = true;
  template <int M, int T>
  static void run(const Block& b) {
    const uint8_t* p = b.w.data + b.tile * b.w.tile_bytes;
    const int steps = (b.w.inputs + Step::kInputs - 1) / Step::kInputs;
    vf acc[M][T];
    for (int m = 0; m < M; m++)
      for (int t = 0; t < T; t++) acc[m][t] = zero();
    for (int k = 0; k < steps; k++, p += Step::kBytes) {
      typename Step::Weights w[T];
      for (int t = 0; t < T; t++) {
        w[t] = Step::weights(p + t * b.w.tile_bytes);
        __builtin_prefetch(p + t * b.w.tile_bytes + 32 * Step::kBytes);
      }
      for (int m = 0; m < M; m++) {
        const auto x = Step::input(row_at(b, m), k);
        for (int t = 0; t < T; t++) acc[m][t] = Step::product(acc[m][t], w[t], x);
      }
    }
    for (int m = 0; m < M; m++)
      for (int t = 0; t < T; t++) finish_tile(b, m, t, acc[m][t]);
  }
};

// Eight steps of four inputs: the weights of a group.
struct Weights8 {
  static constexpr int kBytes = 8 * 64;
  w8 step[8];
  inline void load_from(const uint8_t* p) {
    for (int s = 0; s < 8; s++) step[s] = load_w8(p + 64 * s);
  }
};
struct Weights4 {
  static constexpr int kBytes = 4 * 64;
  w4 step[8];
  inline void load_from(const uint8_t* p) {
    for (int s = 0; s < 4; s++) load_w4(p + 64 * s, step[2 * s], step[2 * s + 1]);
  }
};

// Where the sum of integer products of a group starts.
template <bool kMin>
static inline vi start_of(const Weights4&, const RowGroup& x) {
  return kMin ? izero() : broadcast(&x.start4);
}
template <bool kMin>
static inline vi start_of(const Weights8&, const RowGroup& x) {
  return kBiased8 ? broadcast(&x.start8) : izero();
}

template <class Weights, bool kMin>
struct GroupTiles {
  static constexpr bool kWide = false;
  static constexpr int kBytes = Weights::kBytes + (kMin ? 64 : 32);
  template <int M, int T>
  static void run(const Block& b) {
    const uint8_t* p = b.w.data + b.tile * b.w.tile_bytes;
    const int groups = (b.w.inputs + kGroup - 1) / kGroup;
    vf acc[M];
    for (int m = 0; m < M; m++) acc[m] = zero();
    for (int g = 0; g < groups; g++, p += kBytes) {
      for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + 2048 + i);
      Weights w;
      w.load_from(p);
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + Weights::kBytes);
      const vf scale = load_f16(scales), minimum = kMin ? load_f16(scales + kTile) : zero();
      for (int m = 0; m < M; m++) {
        const RowGroup& x = reinterpret_cast<const RowGroup*>(row_at(b, m))[g];
        vi sum = start_of<kMin>(w, x);
        for (int s = 0; s < 8; s++) sum = dot4(sum, w.step[s], x.q + 4 * s);
        acc[m] = fma(mul(to_float(sum), scale), broadcast(&x.scale), acc[m]);
        if (kMin) acc[m] = fma(minimum, broadcast(&x.weighted), acc[m]);
      }
    }
    const vf unit = set1(b.w.unit[b.tile]);
    for (int m = 0; m < M; m++) finish_tile(b, m, 0, mul(acc[m], unit));
  }
};

// q8 with a scale for each half of a group (Q6_K).
struct HalfGroupTiles {
  static constexpr bool kWide = false;
  static constexpr int kBytes = Weights8::kBytes + 64;
  template <int M, int T>
  static void run(const Block& b) {
    const uint8_t* p = b.w.data + b.tile * b.w.tile_bytes;
    const int groups = (b.w.inputs + kGroup - 1) / kGroup;
    vf acc[M];
    for (int m = 0; m < M; m++) acc[m] = zero();
    for (int g = 0; g < groups; g++, p += kBytes) {
      for (int i = 0; i < kBytes; i += 64) __builtin_prefetch(p + 2048 + i);
      Weights8 w;
      w.load_from(p);
      const uint16_t* scales = reinterpret_cast<const uint16_t*>(p + Weights8::kBytes);
      const vf scale[2] = {load_f16(scales), load_f16(scales + kTile)};
      for (int m = 0; m < M; m++) {
        const RowGroup& x = reinterpret_cast<const RowGroup*>(row_at(b, m))[g];
        for (int h = 0; h < 2; h++) {
          vi sum = kBiased8 ? broadcast(&x.start8_half[h]) : izero();
          for (int s = 4 * h; s < 4 * h + 4; s++) sum = dot4(sum, w.step[s], x.q + 4 * s);
          acc[m] = fma(mul(to_float(sum), scale[h]), broadcast(&x.scale), acc[m]);
        }
      }
    }
    const vf unit = set1(b.w.unit[b.tile]);
    for (int m = 0; m < M; m++) finish_tile(b, m, 0, mul(acc[m], unit));
  }
};

// --- rows and tiles in blocks ----------------------------------------------------------------------------------------

// M rows of the block, as many tiles at once as registers allow.
template <class Tiles, int M>
static void run_tiles(Block b, int tiles) {
  constexpr int T = Tiles::kWide ? tiles_for(M) : 1;
  for (int done = 0; tiles > 0; tiles -= done, b.tile += done, b.y += done * kTile) {
    if (T >= 4 && tiles >= 4) {
      Tiles::template run<M, T >= 4 ? 4 : 1>(b);
      done = 4;
    } else if (T >= 2 && tiles >= 2) {
      Tiles::template run<M, T >= 2 ? 2 : 1>(b);
      done = 2;
    } else {
      Tiles::template run<M, 1>(b);
      done = 1;
    }
  }
}

template <class Tiles, int M>
static void run_rows(const Block& b, int rows, int tiles) {
  if constexpr (M > 1) {
    if (rows != M) return run_rows<Tiles, M - 1>(b, rows, tiles);
  }
  run_tiles<Tiles, M>(b, tiles);
}

// Tiles outside, blocks of rows inside: weights come from memory once and stay near for all rows.
template <class Tiles>
static void run_all(const Linear& w, const void* rows, int n, int tile_begin, int tile_end, float* y, size_t ldy) {
  const size_t stride = row_bytes(row_kind(w.format), w.inputs);
  const int blocks = (n + kMaxRows - 1) / kMaxRows;
  const int step = Tiles::kWide ? tiles_for((n + blocks - 1) / blocks) : 1;
  for (int tile = tile_begin; tile < tile_end; tile += step) {
    const int tiles = tile_end - tile < step ? tile_end - tile : step;
    for (int i = 0, m = 0; i < blocks; i++) {
      const int count = (n - m) / (blocks - i);
      const Block b{w, tile, static_cast<const char*>(rows) + m * stride, stride,
                    y + m * ldy + static_cast<size_t>(tile - tile_begin) * kTile, ldy};
      run_rows<Tiles, kMaxRows>(b, count, tiles);
      m += count;
    }
  }
}

static void linear(const Linear& w, const void* rows, int n, int tile_begin, int tile_end, float* y, size_t ldy) {
  const bool halves = w.group != kGroup;
  switch (w.format) {
    case Format::f32: return run_all<FloatTiles<StepF32>>(w, rows, n, tile_begin, tile_end, y, ldy);
    case Format::f16: return run_all<FloatTiles<StepF16>>(w, rows, n, tile_begin, tile_end, y, ldy);
    case Format::bf16: return run_all<FloatTiles<StepBf16>>(w, rows, n, tile_begin, tile_end, y, ldy);
    case Format::q8:
      if (halves) return run_all<HalfGroupTiles>(w, rows, n, tile_begin, tile_end, y, ldy);
      if (w.has_min) return run_all<GroupTiles<Weights8, true>>(w, rows, n, tile_begin, tile_end, y, ldy);
      return run_all<GroupTiles<Weights8, false>>(w, rows, n, tile_begin, tile_end, y, ldy);
    case Format::q4:
      if (w.has_min) return run_all<GroupTiles<Weights4, true>>(w, rows, n, tile_begin, tile_end, y, ldy);
      return run_all<GroupTiles<Weights4, false>>(w, rows, n, tile_begin, tile_end, y, ldy);
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
