#include "runtime/threads.h"

#include <algorithm>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace forerun {
namespace {

// How long to spin before giving the core away. A barrier inside a forward is a microsecond away; the next forward may
// be a millisecond away, while Python runs.
constexpr int kBarrierSpins = 4000;
constexpr int kJobSpins = 20000;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

Team::Team(int threads) : size_(std::max(1, threads)) {
  for (int t = 1; t < size_; t++) members_.emplace_back([this, t] { work(t); });
}

Team::~Team() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  wake_.notify_all();
  for (auto& member : members_) member.join();
}

void Team::run(const std::function<void(int)>& body) {
  std::lock_guard<std::mutex> one_at_a_time(running_);
  cursor_.store(0, std::memory_order_relaxed);
  if (size_ > 1) {
    body_ = &body;
    unfinished_.store(size_ - 1, std::memory_order_relaxed);
    bool asleep;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      job_.fetch_add(1, std::memory_order_release);
      asleep = sleepers_ > 0;
    }
    if (asleep) wake_.notify_all();
  }
  body(0);
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) != 0; spins++) {
    if (spins < kBarrierSpins) relax();
    else std::this_thread::yield();
  }
}

void Team::work(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; job_.load(std::memory_order_acquire) == seen && !stop_ && spins < kJobSpins; spins++) relax();
    if (job_.load(std::memory_order_acquire) == seen) {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_++;
      wake_.wait(lock, [&] { return stop_ || job_.load(std::memory_order_acquire) != seen; });
      sleepers_--;
    }
    if (stop_) return;
    seen = job_.load(std::memory_order_acquire);
    (*body_)(thread);
    unfinished_.fetch_sub(1, std::memory_order_release);
  }
}

void Team::barrier() {
  if (size_ == 1) {
    cursor_.store(0, std::memory_order_relaxed);
    return;
  }
  const uint32_t phase = phase_.load(std::memory_order_relaxed);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
    arrived_.store(0, std::memory_order_relaxed);
    cursor_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    return;
  }
  for (int spins = 0; phase_.load(std::memory_order_acquire) == phase; spins++) {
    if (spins < kBarrierSpins) relax();
    else std::this_thread::yield();
  }
}

int64_t Team::next(int64_t total, int64_t piece) {
  const int64_t start = cursor_.fetch_add(piece, std::memory_order_relaxed);
  return start < total ? start : -1;
}

}  // namespace forerun
