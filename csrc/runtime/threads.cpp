#include "runtime/threads.h"

#include <algorithm>

#if defined(__x86_64__) || defined(_M_X64)
#include <immintrin.h>
#endif

namespace forerun {
namespace {

// How long to spin before giving the core away. A stage's end is microseconds off; the next job may be a millisecond off,
// while Python runs.
constexpr int kStageSpins = 2000;
constexpr int kJobSpins = 20000;

inline void relax() {
#if defined(__x86_64__) || defined(_M_X64)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace

void Job::wait_for(const std::atomic<int64_t>& done, int64_t total) {
  for (int spins = 0; done.load(std::memory_order_acquire) < total; spins++) {
    if (spins < kStageSpins) relax();
    else std::this_thread::yield();
  }
}

Team::Team(int threads) : size_(std::max(1, threads)) {
  for (int t = 1; t < size_; t++) members_.emplace_back([this, t] { serve(t); });
}

Team::~Team() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    jobs_.fetch_add(1, std::memory_order_release);
  }
  wake_.notify_all();
  for (std::thread& member : members_) member.join();
}

void Team::run(const std::shared_ptr<Job>& job) {
  const std::lock_guard<std::mutex> one_at_a_time(running_);
  if (size_ > 1) {
    bool asleep;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      job_ = job;
      jobs_.fetch_add(1, std::memory_order_release);
      asleep = sleepers_ > 0;
    }
    if (asleep) wake_.notify_all();
  }
  Member me{0};
  job->work(me);
  const std::lock_guard<std::mutex> lock(mutex_);
  job_.reset();  // who comes now has come too late
}

void Team::wait_idle() {
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (busy_ == 0) return;
    }
    std::this_thread::yield();
  }
}

void Team::serve(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; jobs_.load(std::memory_order_acquire) == seen && spins < kJobSpins; spins++) relax();
    std::shared_ptr<Job> job;
    {
      std::unique_lock<std::mutex> lock(mutex_);
      sleepers_++;
      wake_.wait(lock, [&] { return stop_ || jobs_.load(std::memory_order_relaxed) != seen; });
      sleepers_--;
      if (stop_) return;
      seen = jobs_.load(std::memory_order_relaxed);
      job = job_;
      if (job) busy_++;
    }
    if (!job) continue;
    Member me{thread};
    job->work(me);
    job.reset();
    const std::lock_guard<std::mutex> lock(mutex_);
    busy_--;
  }
}

}  // namespace forerun
