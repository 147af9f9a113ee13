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
  // threads: of the team that will do it.
  Job(int stages, int threads)
      : parts_(threads < kMostParts ? threads : kMostParts),
        counters_(new Counter[static_cast<size_t>(stages) * (1 + static_cast<size_t>(parts_))]), stages_(stages) {}
  virtual ~Job() = default;

  // What a member does: calls to share, and between them nothing but what all members may do at once. It may still be
  // called when the job is done, so it must not touch what outlives the job's end outside of share.
  virtual void work(Member& me) noexcept = 0;

 protected:
  // One stage: body(begin, end) is called for pieces of [0, total), each by one member. Returns when all are done. A member
  // takes the pieces of its own part in order, so that it reads memory as it lies, and then helps with what others have left.
  // What `meanwhile` does, it does before it waits.
  template <class Body, class Meanwhile>
  void share(Member& me, int64_t total, int64_t piece, Body&& body, Meanwhile&& meanwhile) {
    Counter* counters = counters_.get() + static_cast<size_t>(me.stage++) * (1 + static_cast<size_t>(parts_));
    std::atomic<int64_t>& done = counters[parts_].n;
    for (int i = 0; i < parts_; i++) {
      const int part = (me.thread + i) % parts_;
      std::atomic<int64_t>& taken = counters[part].n;
      const int64_t first = part_begin(part, total, piece), last = part_begin(part + 1, total, piece);
      int64_t did = 0;
      while (first + taken.load(std::memory_order_relaxed) < last) {
        const int64_t begin = first + taken.fetch_add(piece, std::memory_order_relaxed);
        if (begin >= last) break;
        const int64_t end = begin + piece < last ? begin + piece : last;
        body(begin, end);
        did += end - begin;
      }
      if (did > 0) done.fetch_add(did, std::memory_order_release);  // once: the counter's way from core to core is long
    }
    meanwhile();
    wait_for(done, total);
  }
  template <class Body>
  void share(Member& me, int64_t total, int64_t piece, Body&& body) {
    share(me, total, piece, body, [] {});
  }
  // Where the member's own part begins.
  int64_t own_begin(const Member& me, int64_t total, int64_t piece) const { return part_begin(me.thread % parts_, total, piece); }
  int stages() const { return stages_; }

 private:
  static constexpr int kMostParts = 16;  // of a stage; members beyond share them
  struct alignas(64) Counter {
    std::atomic<int64_t> n{0};
  };
  int64_t part_begin(int part, int64_t total, int64_t piece) const {
    const int64_t begin = (total + piece - 1) / piece * part / parts_ * piece;
    return begin < total ? begin : total;
  }
  static void wait_for(const std::atomic<int64_t>& done, int64_t total);

  int parts_;
  std::unique_ptr<Counter[]> counters_;  // of each stage: what is taken of each part, and what is done of all
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
      Pieces(int threads, int64_t total, int64_t piece, Body& body) : Job(1, threads), total(total), piece(piece), body(body) {}
      void work(Member& me) noexcept override { share(me, total, piece, body); }
      int64_t total, piece;
      Body body;
    };
    run(turn(), std::make_shared<Pieces>(size_, total, piece, body));
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
