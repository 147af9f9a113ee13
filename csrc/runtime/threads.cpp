#include "runtime/threads.h"

#include <pthread.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <system_error>

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

// The teams of this process, for fork. A child has none of its parent's threads, and would find for ever locked what one
// of them had locked: so a fork waits for every team's turn, and the child forgets the crews and their locks.
class Forks {
 public:
  static void enter(Team* team) {
    Forks& all = forks();
    const std::lock_guard<std::mutex> lock(all.mutex_);
    all.teams_.push_back(team);
  }
  static void leave(Team* team) {
    Forks& all = forks();
    const std::lock_guard<std::mutex> lock(all.mutex_);
    all.teams_.erase(std::find(all.teams_.begin(), all.teams_.end(), team));
  }

 private:
  Forks() { pthread_atfork(before, in_parent, in_child); }
  static Forks& forks() {
    static Forks* const all = new Forks;  // never destroyed: forks happen until the very end
    return *all;
  }
  static void before() {
    forks().mutex_.lock();
    for (Team* team : forks().teams_) team->crew_->running.lock();
  }
  static void in_parent() {
    for (Team* team : forks().teams_) team->crew_->running.unlock();
    forks().mutex_.unlock();
  }
  static void in_child() {
    for (Team* team : forks().teams_) {
      static_cast<void>(team->crew_.release());  // threads that are not there can be neither joined nor detached
      team->crew_ = std::make_unique<Team::Crew>();
      team->inherited_ = true;
    }
    forks().mutex_.unlock();
  }

  std::mutex mutex_;
  std::vector<Team*> teams_;
};

void Job::wait_for(const std::atomic<int64_t>& done, int64_t total) {
  for (int spins = 0; done.load(std::memory_order_acquire) < total; spins++) {
    if (spins < kStageSpins) relax();
    else std::this_thread::yield();
  }
}

Team::Team(int threads) : size_(threads), crew_(std::make_unique<Crew>()) {
  if (threads < 1 || threads > kMostThreads) throw std::invalid_argument("team: from 1 to " + std::to_string(kMostThreads) + " threads");
  try {
    crew_->start(size_ - 1);
  } catch (const std::system_error&) {
    throw std::runtime_error("team: the system does not start " + std::to_string(size_) + " threads");
  }
  Forks::enter(this);
}

Team::~Team() { Forks::leave(this); }

void Team::run(const Turn&, const std::shared_ptr<Job>& job) {
  Crew& crew = *crew_;
  if (inherited_) {
    inherited_ = false;
    try {
      crew.start(size_ - 1);
    } catch (const std::system_error&) {  // then with fewer: a job's results do not depend on who does it
    }
  }
  if (!crew.members.empty()) {
    bool asleep;
    {
      const std::lock_guard<std::mutex> lock(crew.mutex);
      crew.job = job;
      crew.jobs.fetch_add(1, std::memory_order_release);
      asleep = crew.sleepers > 0;
    }
    if (asleep) crew.wake.notify_all();
  }
  Member me{0};
  job->work(me);
  const std::lock_guard<std::mutex> lock(crew.mutex);
  crew.job.reset();  // who comes now has come too late
}

void Team::wait_idle() {
  for (;;) {
    {
      const std::lock_guard<std::mutex> lock(crew_->mutex);
      if (crew_->busy == 0) return;
    }
    std::this_thread::yield();
  }
}

void Team::Crew::start(int count) {
  members.reserve(static_cast<size_t>(count));
  for (int t = 1; t <= count; t++) members.emplace_back([this, t] { serve(t); });
}

Team::Crew::~Crew() {
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop = true;
    jobs.fetch_add(1, std::memory_order_release);
  }
  wake.notify_all();
  for (std::thread& member : members) member.join();
}

void Team::Crew::serve(int thread) {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; jobs.load(std::memory_order_acquire) == seen && spins < kJobSpins; spins++) relax();
    std::shared_ptr<Job> current;
    {
      std::unique_lock<std::mutex> lock(mutex);
      sleepers++;
      wake.wait(lock, [&] { return stop || jobs.load(std::memory_order_relaxed) != seen; });
      sleepers--;
      if (stop) return;
      seen = jobs.load(std::memory_order_relaxed);
      current = job;
      if (current) busy++;
    }
    if (!current) continue;
    Member me{thread};
    current->work(me);
    current.reset();
    const std::lock_guard<std::mutex> lock(mutex);
    busy--;
  }
}

}  // namespace forerun
