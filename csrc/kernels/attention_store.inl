// Keys and values as the cache keeps them. Included by attention.inl.
#include "kernels/attention.h"

namespace forerun {
namespace FORERUN_ISA {

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

static void store_key_pairs(const KvHead& head, int slot, const float* key, uint16_t* scratch) {
  for (int d = 0; d < head.value_stride; d += kLanes) store_bf16(scratch + d, load(key + d));
  const int rows = key_rows(head.type, head.head_dim);
  uint16_t* to = static_cast<uint16_t*>(head.keys) + static_cast<size_t>(slot / kKeyBlock) * rows * kKeyBlock + slot % kKeyBlock * 2;
  for (int d = 0; d < rows; d += 2) __builtin_memcpy(to + d * kKeyBlock, scratch + d, 2 * sizeof(uint16_t));
}

static void store_value_pairs(const KvHead& head, int slot, const float* value) {
  uint16_t* to = static_cast<uint16_t*>(head.values) + static_cast<size_t>(slot / 2) * 2 * head.value_stride + slot % 2;
  for (int d = 0; d < head.value_stride; d += kLanes) {
    uint16_t some[kLanes];
    store_bf16(some, load(value + d));
    for (int i = 0; i < kLanes; i++) to[2 * (d + i)] = some[i];
  }
}

// key: value_stride floats, zero from head_dim on; scratch: as many floats.
static void store_key(const KvHead& head, int slot, const float* key, float* scratch) {
  if (head.type == KvType::f32) store_key_as<float>(head, slot, key, scratch);
  else if (head.type == KvType::f16) store_key_as<uint16_t>(head, slot, key, reinterpret_cast<uint16_t*>(scratch));
  else if (head.type == KvType::bf16) store_key_pairs(head, slot, key, reinterpret_cast<uint16_t*>(scratch));
  else store_key_as<int8_t>(head, slot, key, reinterpret_cast<int8_t*>(scratch));
}

// value: value_stride floats, zero from head_dim on.
static void store_value(const KvHead& head, int slot, const float* value) {
  if (head.type == KvType::bf16) return store_value_pairs(head, slot, value);
  const size_t at = static_cast<size_t>(slot) * head.value_stride;
  if (head.type == KvType::f32) encode<float>(value, head.value_stride, static_cast<float*>(head.values) + at);
  else if (head.type == KvType::f16) encode<uint16_t>(value, head.value_stride, static_cast<uint16_t*>(head.values) + at);
  else head.value_scales[slot] = encode<int8_t>(value, head.value_stride, static_cast<int8_t*>(head.values) + at);
}

}  // namespace FORERUN_ISA
}  // namespace forerun
