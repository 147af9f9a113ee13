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

// What 8 bits of x are multiples of, x [n].
static inline float scale_of(const float* x, int n) { return absolute_maximum(x, n) / 127.0f; }
static inline float inverse_of(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

static inline void encode(const float* x, int n, float* kept) { __builtin_memcpy(kept, x, sizeof(float) * static_cast<size_t>(n)); }
static inline void encode(const float* x, int n, uint16_t* kept) {
  for (int i = 0; i < n; i += kLanes) store_f16(kept + i, load(x + i));
}

template <class T>
static void store_key_as(const KvHead& head, int slot, const float* key, T* scratch) {
  encode(key, head.value_stride, scratch);
  T* block = static_cast<T*>(head.keys) + static_cast<size_t>(slot / kKeyBlock) * head.head_dim * kKeyBlock;
  for (int d = 0; d < head.head_dim; d++) block[d * kKeyBlock + slot % kKeyBlock] = scratch[d];
}

// Puts a key in its place by pairs of dimensions, kLanes numbers of a value by pairs of slots.
template <class T>
static void place_key(const KvHead& head, int slot, const T* key) {
  const int rows = key_rows(head.type, head.head_dim);
  T* to = static_cast<T*>(head.keys) + static_cast<size_t>(slot / kKeyBlock) * rows * kKeyBlock + slot % kKeyBlock * 2;
  for (int d = 0; d < rows; d += 2) __builtin_memcpy(to + d * kKeyBlock, key + d, 2 * sizeof(T));
}
template <class T>
static void place_value(const KvHead& head, int slot, const T* value, int first) {
  T* to = static_cast<T*>(head.values) + static_cast<size_t>(slot / 2) * 2 * head.value_stride + slot % 2;
  for (int i = 0; i < kLanes; i++) to[2 * (first + i)] = value[i];
}

// key: value_stride floats, zero from head_dim on; scratch: as many floats.
static void store_key(const KvHead& head, int slot, const float* key, float* scratch) {
  if (head.type == KvType::f32) {
    store_key_as<float>(head, slot, key, scratch);
  } else if (head.type == KvType::f16) {
    store_key_as<uint16_t>(head, slot, key, reinterpret_cast<uint16_t*>(scratch));
  } else if (head.type == KvType::bf16) {
    uint16_t* kept = reinterpret_cast<uint16_t*>(scratch);
    for (int d = 0; d < head.value_stride; d += kLanes) store_bf16(kept + d, load(key + d));
    place_key(head, slot, kept);
  } else {
    int8_t* kept = reinterpret_cast<int8_t*>(scratch);
    const float scale = scale_of(key, head.value_stride), inverse = inverse_of(scale);
    for (int d = 0; d < head.value_stride; d += kLanes) store_s8(kept + d, mul(load(key + d), set1(inverse)));
    head.key_scales[slot] = scale;
    place_key(head, slot, kept);
  }
}

// value: value_stride floats, zero from head_dim on.
static void store_value(const KvHead& head, int slot, const float* value) {
  const int stride = head.value_stride;
  const size_t at = static_cast<size_t>(slot) * stride;
  if (head.type == KvType::f32) {
    encode(value, stride, static_cast<float*>(head.values) + at);
  } else if (head.type == KvType::f16) {
    encode(value, stride, static_cast<uint16_t*>(head.values) + at);
  } else if (head.type == KvType::bf16) {
    uint16_t some[kLanes];
    for (int d = 0; d < stride; d += kLanes) {
      store_bf16(some, load(value + d));
      place_value(head, slot, some, d);
    }
  } else {
    const float scale = scale_of(value, stride), inverse = inverse_of(scale);
    int8_t some[kLanes];
    for (int d = 0; d < stride; d += kLanes) {
      store_s8(some, mul(load(value + d), set1(inverse)));
      place_value(head, slot, some, d);
    }
    head.value_scales[slot] = scale;
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
