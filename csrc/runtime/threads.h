// A small team of threads that runs one function together, with barriers and shared work between them.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

class Team {
 public:
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Runs body(thread) on every member, the caller being thread 0; returns when all are done. `body` must not throw.
  void run(const std::function<void(int)>& body);

  // --- inside run ---
  // Waits until every member is here.
  void barrier();
  // Hands out [0, total) in pieces of `piece`: returns the start of one, or -1 when none is left. Each member calls it
  // until it says -1, then barrier() before the next use of next().
  int64_t next(int64_t total, int64_t piece);

 private:
  void work(int thread);

  const int size_;
  const std::function<void(int)>* body_ = nullptr;
  std::atomic<uint32_t> job_{0};
  std::atomic<int> unfinished_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  int sleepers_ = 0;

  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int64_t> cursor_{0};
  std::mutex running_;
  std::vector<std::thread> members_;
};

}  // namespace forerun
