// Memory that ends with a page, before one that is not there: who reads or writes behind it crashes. AddressSanitizer sees what the
// source does; this, what the compiler made of it.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <new>
#include <utility>

class Fenced {
 public:
  Fenced() = default;
  explicit Fenced(size_t bytes) {
    const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE)), whole = (bytes + page - 1) / page * page;
    void* base = mmap(nullptr, whole + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<uint8_t*>(base);
    mapped_ = whole + page;
    data_ = base_ + whole - bytes;
    if (mprotect(base_ + whole, page, PROT_NONE) != 0) throw std::bad_alloc();
  }
  Fenced(const void* from, size_t bytes) : Fenced(bytes) {
    if (bytes > 0) std::memcpy(data_, from, bytes);
  }
  Fenced(Fenced&& other) noexcept { swap(other); }
  Fenced& operator=(Fenced&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Fenced() {
    if (base_) munmap(base_, mapped_);
  }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  void swap(Fenced& other) {
    std::swap(base_, other.base_);
    std::swap(data_, other.data_);
    std::swap(mapped_, other.mapped_);
  }
  uint8_t *base_ = nullptr, *data_ = nullptr;
  size_t mapped_ = 0;
};
