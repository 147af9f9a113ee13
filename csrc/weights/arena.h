// Memory for weights: large mappings on huge pages, handed out in order and freed together.
#pragma once
#include <mutex>
#include <vector>

#include "runtime/buffer.h"
#include "runtime/fences.h"

namespace forerun {

class Arena {
 public:
  // chunk: bytes of a mapping, where a layer does not need more.
  explicit Arena(size_t chunk = kChunkBytes) : chunk_(chunk) {}

  // Zeroed memory, aligned to 64 bytes, valid as long as the arena. Throws std::bad_alloc.
  uint8_t* take(size_t bytes) {
    const std::lock_guard<std::mutex> guard(mutex_);
    const size_t rounded = (bytes + 63) / 64 * 64 + kFence;
    if (chunks_.empty() || chunks_.back().size() - used_ < rounded) {
      chunks_.emplace_back(rounded > chunk_ ? rounded : chunk_, true);
      forbid(chunks_.back().as<uint8_t>(), chunks_.back().size());
      used_ = 0;
    }
    uint8_t* at = chunks_.back().as<uint8_t>() + used_;
    allow(at, bytes);
    used_ += rounded;
    total_ += rounded;
    return at;
  }
  size_t bytes() const { return total_; }  // handed out so far

 private:
  static constexpr size_t kChunkBytes = size_t(64) << 20;
  const size_t chunk_;
  std::mutex mutex_;
  std::vector<Buffer> chunks_;
  size_t used_ = 0, total_ = 0;
};

}  // namespace forerun
