// What attention kernels are told. Shapes in elements.
#pragma once
#include <cstddef>
#include <cstdint>

namespace forerun {

// How keys and values are kept. q8: 8 bits with one scale for each head's vector.
enum class KvType : uint8_t { f32, f16, q8, bf16 };

constexpr int kKeyBlock = 16;   // slots whose keys lie together, dimension by dimension
constexpr int kPage = 128;      // slots whose keys and values lie together
constexpr int kChunk = 128;     // positions whose scores are softened together
constexpr int kMaxQueries = 12; // queries that one call of attend takes

// Chunks go in runs: a run's chunks are added up in order, then the runs' sums are merged in order. Where runs begin depends on
// positions alone, so threads may share them out. The first chunks are runs by themselves, for threads share short texts too.
constexpr int kRunChunks = 4;
constexpr int run_of(int chunk) { return chunk < kRunChunks ? chunk : kRunChunks - 1 + chunk / kRunChunks; }
constexpr int run_begin(int run) { return run <= kRunChunks ? run : (run - kRunChunks + 1) * kRunChunks; }

// Whether keys are kept by pairs of dimensions and values by pairs of slots, to be multiplied two at once.
constexpr bool in_pairs(KvType type) { return type == KvType::bf16 || type == KvType::q8; }

// Numbers that are kept of a key: head_dim, made even in pairs.
constexpr int key_rows(KvType type, int head_dim) { return in_pairs(type) ? (head_dim + 1) / 2 * 2 : head_dim; }

// Keys and values of one head of one layer of one sequence, by pages of slots. In a page:
//   keys    [blocks][head_dim][kKeyBlock]      values  [slots][value_stride]
// In pairs:
//   keys    [blocks][key_rows / 2][kKeyBlock][2]   values  [slots / 2][value_stride][2]
struct KvHead {
  KvType type;
  int head_dim;
  int value_stride;  // head_dim rounded up to 16
  void* keys;           // of the first page, as the others here
  void* values;
  float* key_scales;    // [slots], q8 only
  float* value_scales;  // [slots], q8 only
  size_t page_bytes;    // from an array's page to its next
};

// The positions that a query sees: position p lies in slot p below `prefix`, in slot tail[p - prefix] from there on.
struct Query {
  int first;            // first position seen (above 0 under a sliding window)
  int prefix;
  const int32_t* tail;  // slots of the remaining positions
  int length;           // positions first .. length - 1 are seen
};

// A softmax-weighted sum: [0] maximum, [1] sum of weights, [16 ..] weighted values. 16 + value_stride floats.
constexpr int kSumHeader = 16;

}  // namespace forerun
