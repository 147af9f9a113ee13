// Memory of its own mapping: zeroed, page aligned, counted as resident only where touched, and on huge pages if asked.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>

#include "runtime/fences.h"

namespace forerun {

class Buffer {
 public:
  Buffer() = default;
  // Throws std::bad_alloc when the system has no room.
  explicit Buffer(size_t bytes, bool huge_pages = false) : bytes_(bytes) {
    if (bytes == 0) return;
    if (bytes > SIZE_MAX / 4) throw std::bad_alloc();
    const size_t huge = size_t(2) << 20;
    const bool advise = huge_pages && bytes >= huge;
    mapped_ = advise ? (bytes + kFence + 2 * huge - 1) / huge * huge : bytes + kFence;
    base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    data_ = base_;
    if (advise) {  // start on a huge page
      const size_t address = reinterpret_cast<size_t>(base_);
      data_ = reinterpret_cast<void*>((address + huge - 1) / huge * huge);
#ifdef MADV_HUGEPAGE
      madvise(data_, bytes, MADV_HUGEPAGE);
#endif
    }
    forbid(static_cast<uint8_t*>(data_) + bytes, kFence);
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() {
    if (mapped_ == 0) return;
    allow(base_, mapped_);
    munmap(base_, mapped_);
  }

  size_t size() const { return bytes_; }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }
  // Make the buffer at least `bytes` long; its content is lost when it grows.
  void reserve(size_t bytes) {
    if (bytes > bytes_) *this = Buffer(bytes);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(mapped_, other.mapped_);
  }
  void* base_ = nullptr;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  size_t mapped_ = 0;
};

}  // namespace forerun
