// Keys and values of one sequence, with staging: a forward writes its rows behind the committed ones, commit keeps a path
// of them. What is not committed never happened. A cache has one user at a time: who comes in between is refused.
#pragma once
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/attention.h"
#include "runtime/buffer.h"

namespace forerun {

class Cache {
 public:
  // capacity: the most positions a row may have. Memory is reserved at once and used as positions are written.
  // Throws std::invalid_argument on shapes that make no sense, std::bad_alloc without room.
  Cache(int layers, int kv_heads, int head_dim, KvType type, int capacity);

  int capacity() const { return capacity_; }
  int length() const { return length_; }
  int staged() const { return static_cast<int>(parents_.size()); }
  const std::vector<int32_t>& parents() const { return parents_; }  // of the staged rows, as `stage` was told
  size_t bytes_per_token() const;
  KvHead head(int layer, int kv_head) const;
  int layers() const { return layers_; }
  int kv_heads() const { return kv_heads_; }
  int head_dim() const { return head_dim_; }
  int room() const { return slots_ - length_; }  // rows that one forward may stage

  // The right to use the cache, as a forward has it while it works.
  class Use {
   public:
    // Throws std::runtime_error when another thread has it.
    explicit Use(Cache& cache);
    Use(Use&& other) noexcept : cache_(std::exchange(other.cache_, nullptr)) {}
    Use& operator=(Use&&) = delete;
    ~Use();

   private:
    Cache* cache_;
  };

  // Makes the stage one of rows with these parents (indices within the stage, -1: the last committed token). Rows that
  // were staged before and are among them, in their places, keep their keys and values.
  void stage(std::vector<int32_t>&& parents) noexcept;
  // Keeps the staged rows of `path` (root first, each the child of the one before) in order; forgets the others.
  // A path that is a prefix of the stage moves nothing. Throws std::invalid_argument on anything else than a path.
  void commit(const std::vector<int32_t>& path);
  // Forgets committed tokens from `length` on, and the stage. Throws std::invalid_argument when there are fewer.
  void truncate(int length);

 private:
  void move(int from, int to);

  int layers_, kv_heads_, head_dim_, value_stride_;
  KvType type_;
  int capacity_, slots_;
  int length_ = 0;
  std::vector<int32_t> parents_;
  // Memory is [pages of slots][layers][kv_heads], so that it is used from its beginning on, and huge pages are full.
  size_t element_, keys_bytes_, values_bytes_, scales_bytes_, head_bytes_, page_bytes_;
  Buffer memory_;
  std::atomic<bool> used_{false};
};

}  // namespace forerun
