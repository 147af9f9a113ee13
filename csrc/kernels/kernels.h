// The table of kernels that every instruction set fills, and the layouts they share.
//
// The law of width invariance: for one output of one row, a kernel performs the same operations in the same order
// whatever the number of rows, the tile range and the thread. Then prefill, plain decoding and tree verification give
// the same bits.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/choice.h"

namespace forerun {

constexpr int kTile = 16;   // outputs in a tile
constexpr int kGroup = 32;  // inputs that share a scale in the quantised formats

// How weights are executed.
enum class Format : uint8_t { f32, f16, bf16, q8, q4 };

// How a row of inputs is prepared for them: f32 and f16 weights take f32; bf16 weights take f32 or bf16, as the
// instruction set likes it; q8 and q4 take 8-bit groups with a scale.
enum class RowKind : uint8_t { f32, bf16, q8 };

// The weights of a linear layer in tiles of 16 outputs (the last tile padded with zeros). Owned elsewhere; the layouts
// of a tile are described in docs/kernels.md.
struct Linear {
  Format format;
  bool has_min;       // q8, q4: groups carry a minimum as well as a scale
  int group;          // q8, q4: inputs that share a scale, kGroup or half of it
  int outputs, inputs;
  int tiles;          // ceil(outputs / kTile)
  size_t tile_bytes;  // bytes from one tile to the next
  const uint8_t* data;
  const float* unit;  // [tiles] q8, q4: what the tile's scales and minima are multiples of, a power of two
  const float* bias;  // [tiles * kTile], or null
};

struct Kernels {
  const char* name;  // "portable", "avx2", ...

  // --- linear layers (linear.inl) ---
  RowKind (*row_kind)(Format format);
  size_t (*row_bytes)(RowKind kind, int inputs);  // bytes of one prepared row, a multiple of 64
  // Prepares inputs [begin, end) of a row from x[0 .. end - begin); begin a multiple of kGroup, end too or == inputs.
  // Groups are independent, so a row may be prepared in parts; the part that reaches `inputs` also writes the padding.
  void (*prepare)(RowKind kind, const float* x, int inputs, int begin, int end, void* row);
  // After prepare to q8 of the whole row x: more bits for groups with outliers. For all rows of a call of linear, or none.
  void (*refine)(const float* x, int inputs, void* row);
  // y[m * ldy + (t - tile_begin) * kTile + i] = output t * kTile + i of row m, for tiles [tile_begin, tile_end).
  // rows: n prepared rows, each row_bytes apart. n is any positive number: weights are read once a block of rows.
  void (*linear)(const Linear& w, const void* rows, int n, int tile_begin, int tile_end, float* y, size_t ldy);

  // --- packing weights (quantise.inl): a group of n <= kGroup weights of each of kTile rows, `stride` apart in x and in q ---
  // q in [-8, 7] so that scale * q + offset is close to x in the least squares sense. Scales are multiples of `unit`, a power
  // of two, that f16 holds, offsets such that bf16 holds. scale, offset: [kTile]. The same bits on every instruction set.
  void (*quantise_q4)(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale, float* offset);
  // The same with q in [-127, 127] and no offset.
  void (*quantise_q8)(const float* x, int8_t* q, size_t stride, int n, float unit, float* scale);

  // --- row by row (elementwise.inl) ---
  void (*rms_norm)(const float* x, const float* weight, int n, float eps, float* y);
  void (*rope)(float* head, const float* cos, const float* sin, int half);
  void (*scale)(float* x, float factor, int n);
  void (*accumulate)(float* x, const float* y, int n);
  void (*swiglu)(float* gate, const float* up, int n);  // n a multiple of 16
  int (*argmax)(const float* x, int n);

  // --- attention (attention.inl) ---
  void (*store_key)(const KvHead& head, int slot, const float* key, float* scratch);
  void (*store_value)(const KvHead& head, int slot, const float* value);
  size_t (*attend_scratch)(int tail_blocks, int value_stride);
  void (*pack_query)(const KvHead& head, const float* q, int i, float* packed);
  void (*clear)(float* sums, int n, int value_stride);
  void (*attend)(const KvHead& head, const float* q, const Query* queries, int n, int chunk, float* scratch, int tail_blocks, float* sums);
  void (*merge)(float* sums, const float* more, int n, int value_stride);
  void (*finish)(const float* sum, int head_dim, float* out);

  // --- choosing a token (choice.inl): rows x[0 .. n) of logits, in blocks of kBlock ---
  // tops[b] = the highest value of block b. Returns the highest of all; NaN if there is one (and then tops mean nothing).
  float (*survey)(const float* x, int n, float* tops);
  // y = x where the token's bit is set, -inf elsewhere.
  void (*copy_allowed)(const float* x, int n, const uint32_t* allowed, float* y);
  // Which values of block b are at least `least`: a bit each.
  uint64_t (*reaching)(const float* x, int n, int b, float least);
  // The indices of all that are, in order; returns how many. ids: room for n.
  int (*collect)(const float* x, int n, const float* tops, float least, int32_t* ids);
  // The k-th highest of n values, 1 <= k <= n, none of them NaN. keys: scratch, [n].
  float (*kth_of)(const float* values, int n, int k, int32_t* keys);
  // About the sums of 2^((x - top) scale) over values that are at least `least`, and of these over what is at least
  // `value`. top: the highest value.
  Masses (*tally)(const float* x, int n, const float* tops, float least, float value, float top, float scale);
  // Exactly lane_sum of exp(x / temperature - best), where values below `least` have none. weights: [n] the summands, or
  // null.
  double (*exp_sum)(const float* x, int n, const float* tops, float least, double temperature, double best,
                    double* weights);
  // The two words of each group's noise; and a bound on x / temperature + noise - top / temperature for the values of the
  // group's block, -inf where all are below `least`. noise: room for a multiple of 16 groups.
  void (*lift)(uint64_t seed, uint32_t position, const float* tops, int groups, float least, float top,
               float inverse_temperature, uint64_t* noise, float* bounds);
};

// The table for the set called `name`, or null where this build or machine lacks it; an empty name means the best.
const Kernels* find_kernels(const char* name);

// The tables that this build and machine have, best first; returns how many, at most `room` are written.
int available_kernels(const Kernels** tables, int room);

}  // namespace forerun
