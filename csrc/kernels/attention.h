// What attention kernels are told. Shapes in elements.
#pragma once
#include <cstddef>
#include <cstdint>

namespace forerun {

// How keys and values are kept. q8: 8 bits with one scale for each head's vector.
enum class KvType : uint8_t { f32, f16, q8, bf16 };

constexpr int kKeyBlock = 16;   // slots whose keys lie together, dimension by dimension
constexpr int kChunk = 128;     // positions whose softmax is computed as one part; parts are merged in order
constexpr int kMaxQueries = 12; // queries that one call of attend takes

// Numbers that are kept of a key: head_dim, made even in bf16.
constexpr int key_rows(KvType type, int head_dim) { return type == KvType::bf16 ? (head_dim + 1) / 2 * 2 : head_dim; }

// Keys and values of one head of one layer of one sequence, indexed by slot.
//   keys    [blocks][head_dim][kKeyBlock]      values  [slots][value_stride]
// bf16, by pairs of dimensions and of slots:
//   keys    [blocks][key_rows / 2][kKeyBlock][2]   values  [slots / 2][value_stride][2]
struct KvHead {
  KvType type;
  int head_dim;
  int value_stride;  // head_dim rounded up to 16
  void* keys;
  void* values;
  float* key_scales;    // [slots], q8 only
  float* value_scales;  // [slots], q8 only
};

// The positions that a query sees: position p lies in slot p below `prefix`, in slot tail[p - prefix] from there on.
struct Query {
  int first;            // first position seen (above 0 under a sliding window)
  int prefix;
  const int32_t* tail;  // slots of the remaining positions
  int length;           // positions first .. length - 1 are seen
};

// A part of a softmax-weighted sum: [0] maximum, [1] sum of weights, [16 ..] weighted values. 16 + value_stride floats.
constexpr int kPartHeader = 16;

}  // namespace forerun
