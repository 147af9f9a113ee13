// Keys and values as the cache keeps them. Included by attention.inl.
#include "kernels/attention.h"

namespace forerun {
namespace FORERUN_ISA {

// What array `first` of a head has for the page of a slot.
template <class T>
static inline T* page_of(const KvHead& head, void* first, int slot) {
  return reinterpret_cast<T*>(static_cast<char*>(first) + static_cast<size_t>(slot / kPage) * head.page_bytes);
}
// Keys of a slot's block, a slot's value, or those of a pair of slots.
template <class T>
static inline T* keys_at(const KvHead& head, int slot) {
  return page_of<T>(head, head.keys, slot) + static_cast<size_t>(slot % kPage / kKeyBlock) * key_rows(head.type, head.head_dim) * kKeyBlock;
}
template <class T>
static inline T* values_at(const KvHead& head, int slot) {
  const int first = in_pairs(head.type) ? slot % kPage / 2 * 2 : slot % kPage;
  return page_of<T>(head, head.values, slot) + static_cast<size_t>(first) * head.value_stride;
}
static inline float* scale_at(const KvHead& head, float* scales, int slot) { return page_of<float>(head, scales, slot) + slot % kPage; }

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
  T* block = keys_at<T>(head, slot);
  for (int d = 0; d < head.head_dim; d++) block[d * kKeyBlock + slot % kKeyBlock] = scratch[d];
}

// Puts a key in its place by pairs of dimensions, kLanes numbers of a value by pairs of slots.
template <class T>
static void place_key(const KvHead& head, int slot, const T* key) {
  const int rows = key_rows(head.type, head.head_dim);
  T* to = keys_at<T>(head, slot) + slot % kKeyBlock * 2;
  for (int d = 0; d < rows; d += 2) __builtin_memcpy(to + d * kKeyBlock, key + d, 2 * sizeof(T));
}
template <class T>
static void place_value(const KvHead& head, int slot, const T* value, int first) {
  T* to = values_at<T>(head, slot) + slot % 2;
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
    *scale_at(head, head.key_scales, slot) = scale;
    place_key(head, slot, kept);
  }
}

// value: value_stride floats, zero from head_dim on.
static void store_value(const KvHead& head, int slot, const float* value) {
  const int stride = head.value_stride;
  if (head.type == KvType::f32) {
    encode(value, stride, values_at<float>(head, slot));
  } else if (head.type == KvType::f16) {
    encode(value, stride, values_at<uint16_t>(head, slot));
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
    *scale_at(head, head.value_scales, slot) = scale;
  }
}

}  // namespace FORERUN_ISA
}  // namespace forerun
