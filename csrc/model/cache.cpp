#include "model/cache.h"

#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "runtime/fences.h"

namespace forerun {
namespace {

constexpr int kAhead = 3;        // heads
constexpr int kStageRoom = 256;  // slots beyond the capacity: a tree has more nodes than levels
size_t round64(size_t bytes) { return (bytes + 63) / 64 * 64; }
size_t times(size_t a, size_t b) {
  size_t product;
  if (__builtin_mul_overflow(a, b, &product)) throw std::bad_alloc();
  return product;
}

// Copies pieces of so many bytes that lie `stride` bytes apart.
template <size_t kPiece>
void copy_pieces(uint8_t* to, const uint8_t* from, size_t count, size_t stride) {
  for (size_t i = 0; i < count; i++) std::memcpy(to + i * stride, from + i * stride, kPiece);
}
void copy_pieces(size_t piece, uint8_t* to, const uint8_t* from, size_t count, size_t stride) {
  if (piece == 1) copy_pieces<1>(to, from, count, stride);
  else if (piece == 2) copy_pieces<2>(to, from, count, stride);
  else copy_pieces<4>(to, from, count, stride);
}

}  // namespace

Cache::Cache(int layers, int kv_heads, int head_dim, KvType type, int capacity)
    : layers_(layers), kv_heads_(kv_heads), head_dim_(head_dim), value_stride_((head_dim + 15) / 16 * 16), type_(type),
      capacity_(capacity) {
  if (layers < 1 || kv_heads < 1 || head_dim < 1 || head_dim > 4096 || capacity < 1 || capacity > (1 << 28))
    throw std::invalid_argument("cache: shape out of range");
  slots_ = (capacity + kStageRoom + kKeyBlock - 1) / kKeyBlock * kKeyBlock;
  element_ = type == KvType::f32 ? 4 : type == KvType::q8 ? 1 : 2;
  keys_bytes_ = round64(static_cast<size_t>(kPage) * key_rows(type, head_dim_) * element_) + kFence;
  values_bytes_ = round64(static_cast<size_t>(kPage) * value_stride_ * element_) + kFence;
  scales_bytes_ = type == KvType::q8 ? round64(static_cast<size_t>(kPage) * sizeof(float)) + kFence : 0;
  head_bytes_ = keys_bytes_ + values_bytes_ + 2 * scales_bytes_;
  page_bytes_ = times(times(head_bytes_, static_cast<size_t>(kv_heads_)), static_cast<size_t>(layers_));
  memory_ = Buffer(times(page_bytes_, static_cast<size_t>((slots_ + kPage - 1) / kPage)), true);
  for (uint8_t* at = memory_.as<uint8_t>(); kFence > 0 && at < memory_.as<uint8_t>() + memory_.size();)
    for (const size_t array : {keys_bytes_, values_bytes_, scales_bytes_, scales_bytes_}) {
      if (array > 0) forbid(at + array - kFence, kFence);
      at += array;
    }
}

size_t Cache::bytes_per_token() const {
  const size_t scales = type_ == KvType::q8 ? 2 * sizeof(float) : 0;
  return static_cast<size_t>(layers_) * kv_heads_ * ((key_rows(type_, head_dim_) + value_stride_) * element_ + scales);
}

KvHead Cache::head(int layer, int kv_head) const {
  uint8_t* base = memory_.as<uint8_t>() + (static_cast<size_t>(layer) * kv_heads_ + kv_head) * head_bytes_;
  uint8_t* scales = base + keys_bytes_ + values_bytes_;
  return {type_,
          head_dim_,
          value_stride_,
          base,
          base + keys_bytes_,
          reinterpret_cast<float*>(scales),
          reinterpret_cast<float*>(scales + scales_bytes_),
          page_bytes_};
}

Cache::Use::Use(Cache& cache) : cache_(&cache) {
  if (cache.used_.exchange(true, std::memory_order_acquire)) throw std::runtime_error("cache: another thread is using it");
}
Cache::Use::~Use() {
  if (cache_) cache_->used_.store(false, std::memory_order_release);
}

void Cache::stage(std::vector<int32_t>&& parents) noexcept { parents_ = std::move(parents); }

void Cache::commit(const std::vector<int32_t>& path) {
  const Use use(*this);
  if (path.size() > parents_.size()) throw std::invalid_argument("commit: not a path of the rows last computed");
  const int count = static_cast<int>(path.size());
  int previous = -1;
  for (int i = 0; i < count; i++) {
    if (path[i] < 0 || path[i] >= staged() || parents_[path[i]] != previous)
      throw std::invalid_argument("commit: not a path of the rows last computed");
    previous = path[i];
  }
  if (length_ + count > capacity_) throw std::invalid_argument("commit: beyond the cache's capacity");
  for (int i = 0; i < count; i++)
    if (path[i] != i) move(length_ + path[i], length_ + i);
  length_ += count;
  parents_.clear();
}

void Cache::truncate(int length) {
  const Use use(*this);
  if (length < 0 || length > length_)
    throw std::invalid_argument("truncate: the cache holds " + std::to_string(length_) + " tokens");
  length_ = length;
  parents_.clear();
}

void Cache::move(int from, int to) {
  // In pairs two dimensions of a key lie together, and the values of two slots are interleaved.
  const size_t together = in_pairs(type_) ? 2 : 1, unit = together * element_;
  const size_t block = static_cast<size_t>(key_rows(type_, head_dim_)) * kKeyBlock * element_;
  const size_t row = value_stride_ * element_;
  const auto page_of = [&](void* array, int slot) { return static_cast<uint8_t*>(array) + static_cast<size_t>(slot / kPage) * page_bytes_; };
  const auto keys_of = [&](const KvHead& kv, int slot) { return page_of(kv.keys, slot) + slot % kPage / kKeyBlock * block; };
  const auto key_of = [&](const KvHead& kv, int slot) { return keys_of(kv, slot) + slot % kKeyBlock * unit; };
  const auto values_of = [&](const KvHead& kv, int slot) { return page_of(kv.values, slot) + slot % kPage / together * together * row; };
  const auto value_of = [&](const KvHead& kv, int slot) { return values_of(kv, slot) + slot % together * element_; };
  const auto scale_of = [&](float* scales, int slot) { return page_of(scales, slot) + slot % kPage * sizeof(float); };
  const int heads = layers_ * kv_heads_;
  const auto ask = [&](int index) {  // memory is far away: it is asked for some heads ahead
    if (index >= heads) return;
    const KvHead kv = head(index / kv_heads_, index % kv_heads_);
    for (const int slot : {from, to}) {
      for (size_t at = 0; at < block; at += 64) __builtin_prefetch(keys_of(kv, slot) + at, 1);
      for (size_t at = 0; at < together * row; at += 64) __builtin_prefetch(values_of(kv, slot) + at, 1);
    }
  };
  for (int index = 0; index < kAhead; index++) ask(index);
  for (int index = 0; index < heads; index++) {
    ask(index + kAhead);
    const KvHead kv = head(index / kv_heads_, index % kv_heads_);
    copy_pieces(unit, key_of(kv, to), key_of(kv, from), block / (kKeyBlock * unit), kKeyBlock * unit);
    if (in_pairs(type_)) copy_pieces(element_, value_of(kv, to), value_of(kv, from), static_cast<size_t>(value_stride_), unit);
    else std::memcpy(value_of(kv, to), value_of(kv, from), row);
    if (type_ == KvType::q8) {
      std::memcpy(scale_of(kv.key_scales, to), scale_of(kv.key_scales, from), sizeof(float));
      std::memcpy(scale_of(kv.value_scales, to), scale_of(kv.value_scales, from), sizeof(float));
    }
  }
}

}  // namespace forerun
