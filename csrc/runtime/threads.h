// A small team of threads that does a job together, stage after stage.
//
// Nobody waits for a thread as such, only for work that some thread has begun: on a busy machine a member that the system
// has put aside holds up no one, and finds its stages done when it comes back.
#pragma once
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

// A thread's place in a job.
struct Member {
  int thread;
  int stage = 0;
};

// Work in stages. Every member passes through the same stages in the same order.
class Job {
 public:
  explicit Job(int stages) : progress_(new Progress[static_cast<size_t>(stages)]), stages_(stages) {}
  virtual ~Job() = default;

  // What a member does: calls to share, and between them nothing but what all members may do at once. It may still be
  // called when the job is done, so it must not touch what outlives the job's end outside of share.
  virtual void work(Member& me) noexcept = 0;

 protected:
  // One stage: body(begin, end) is called for pieces of [0, total), each by one member. Returns when all are done.
  template <class Body>
  void share(Member& me, int64_t total, int64_t piece, Body&& body) {
    Progress& stage = progress_[me.stage++];
    while (stage.next.load(std::memory_order_relaxed) < total) {
      const int64_t begin = stage.next.fetch_add(piece, std::memory_order_relaxed);
      if (begin >= total) break;
      const int64_t end = begin + piece < total ? begin + piece : total;
      body(begin, end);
      stage.done.fetch_add(end - begin, std::memory_order_release);
    }
    wait_for(stage.done, total);
  }
  int stages() const { return stages_; }

 private:
  struct alignas(64) Progress {
    std::atomic<int64_t> next{0}, done{0};
  };
  static void wait_for(const std::atomic<int64_t>& done, int64_t total);

  std::unique_ptr<Progress[]> progress_;
  int stages_;
};

// A child made by fork has its own team of the same size: fork waits until no team is at work, and the child starts its
// members when it first runs a job.
class Team {
 public:
  static constexpr int kMostThreads = 1024;
  // The right to run jobs, which one thread at a time has.
  using Turn = std::unique_lock<std::mutex>;

  // Throws std::invalid_argument outside 1 .. kMostThreads, std::runtime_error when the system starts no more threads.
  explicit Team(int threads);
  ~Team();
  Team(const Team&) = delete;
  Team& operator=(const Team&) = delete;

  int size() const { return size_; }

  // Waits for those before.
  Turn turn() { return Turn(crew_->running); }
  // Does the job, the caller as member 0; returns when its last stage is done. Members may then still hold the job.
  void run(const Turn& turn, const std::shared_ptr<Job>& job);
  // body(begin, end) for pieces of [0, total), by all members. It must not throw.
  template <class Body>
  void for_each(int64_t total, int64_t piece, Body body) {
    struct Pieces : Job {
      Pieces(int64_t total, int64_t piece, Body& body) : Job(1), total(total), piece(piece), body(body) {}
      void work(Member& me) noexcept override { share(me, total, piece, body); }
      int64_t total, piece;
      Body body;
    };
    run(turn(), std::make_shared<Pieces>(total, piece, body));
  }
  // Returns when no member holds a job any more.
  void wait_idle();

 private:
  friend class Forks;
  // The members other than the caller, and what they are told.
  struct Crew {
    std::mutex running;  // one job at a time
    std::mutex mutex;    // guards job, busy, sleepers, stop
    std::condition_variable wake;
    std::shared_ptr<Job> job;
    int busy = 0, sleepers = 0;
    bool stop = false;
    alignas(64) std::atomic<uint32_t> jobs{0};
    std::vector<std::thread> members;

    ~Crew();
    void start(int count);
    void serve(int thread);
  };

  const int size_;
  bool inherited_ = false;  // this is a child's copy, whose members have not been started
  std::unique_ptr<Crew> crew_;
};

}  // namespace forerun
