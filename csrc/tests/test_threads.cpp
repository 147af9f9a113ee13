// Teams and jobs: every piece is done once, stages follow each other, turns are taken, forks are survived. What is shared
// here is plain memory, so that ThreadSanitizer sees whether stages and turns order it.
#include <sys/wait.h>
#include <unistd.h>

#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "runtime/bandwidth.h"
#include "runtime/threads.h"
#include "tests/check.h"

using namespace forerun;

namespace {

Checks check;

void test_every_piece_once(Team& team) {
  for (const int64_t total : {0, 1, 2, 7, 64, 1000})
    for (const int64_t piece : {1, 3, 8, 2000}) {
      std::vector<int> times(static_cast<size_t>(total), 0);
      team.for_each(total, piece, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++) times[static_cast<size_t>(i)]++;
      });
      bool once = true;
      for (const int n : times) once = once && n == 1;
      check(once, "every piece once: " + std::to_string(total) + " by " + std::to_string(piece));
    }
}

// Stage after stage, each place becomes the sum of its neighbours' values of the stage before.
class Waves : public Job {
 public:
  Waves(int stages, int width, int threads) : Job(stages + 1, threads), width_(width) {
    for (auto& row : rows_) row.assign(static_cast<size_t>(width), 1);
  }
  void work(Member& me) noexcept override {
    for (int s = 0; s < stages() - 1; s++)
      share(me, width_, 3, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; i++)
          at(s + 1, i) = (at(s, i) + at(s, (i + 1) % width_) + at(s, (i + width_ - 1) % width_)) % 1000003;
      });
    share(me, 0, 1, [](int64_t, int64_t) {});  // nothing to do is done at once
  }
  std::vector<int64_t> result() const { return rows_[(stages() - 1) % 2]; }

 private:
  int64_t& at(int stage, int64_t i) { return rows_[stage % 2][static_cast<size_t>(i)]; }
  int64_t width_;
  std::vector<int64_t> rows_[2];
};

void test_stages(Team& team, int times) {
  for (int t = 0; t < times; t++) {
    const auto waves = std::make_shared<Waves>(50, 37, team.size());
    team.run(team.turn(), waves);
    const std::vector<int64_t> got = waves->result();
    int64_t expected = 1;
    for (int s = 0; s < 50; s++) expected = 3 * expected % 1000003;
    bool right = true;
    for (const int64_t value : got) right = right && value == expected;
    check(right, "stages in order");
  }
}

// Members that come late must find nothing to do, whatever has become of what the job was about.
void test_late_members(Team& team, int jobs) {
  int64_t sum = 0;
  std::weak_ptr<Job> last;
  for (int j = 0; j < jobs; j++) {
    auto numbers = std::make_unique<std::vector<int64_t>>(8, j);
    int64_t* const at = numbers->data();
    team.for_each(8, 1, [at](int64_t i, int64_t) { at[i] += i; });
    sum += std::accumulate(numbers->begin(), numbers->end(), int64_t(0));
  }
  check(sum == int64_t(jobs) * (jobs - 1) / 2 * 8 + int64_t(jobs) * 28, "short jobs one after the other");
  {
    const auto waves = std::make_shared<Waves>(3, 5, 1);
    last = waves;
    team.run(team.turn(), waves);
  }
  team.wait_idle();
  check(last.expired(), "an idle team holds no job");
}

void test_turns(Team& team) {
  int64_t counter = 0;  // guarded by the turn
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; c++)
    callers.emplace_back([&] {
      for (int k = 0; k < 50; k++) {
        const Team::Turn turn = team.turn();
        const auto waves = std::make_shared<Waves>(5, 11, team.size());
        team.run(turn, waves);
        counter++;
      }
    });
  for (std::thread& caller : callers) caller.join();
  check(counter == 200, "turns are taken one at a time");
}

void test_sizes() {
  for (const int threads : {0, -3, Team::kMostThreads + 1})
    check.refuses<std::invalid_argument>("threads", [&] { Team team(threads); });
  for (int t = 0; t < 50; t++) Team(1 + t % 5);  // made and gone, with nothing to do or just asked
  for (int t = 0; t < 50; t++) {
    Team team(1 + t % 5);
    test_every_piece_once(team);
  }
}

void test_bandwidth(Team& team) { check(read_bandwidth(team, size_t(4) << 20, 2) > 0.0, "memory is read"); }

// Not under sanitizers: one does not follow threads of a child, the other's allocator can be left locked in it.
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
void test_forks(Team& team) {
  bool stop = false;
  std::mutex mutex;
  const auto stopped = [&] {
    const std::lock_guard<std::mutex> lock(mutex);
    return stop;
  };
  std::thread other([&] {
    while (!stopped()) test_stages(team, 1);
  });
  for (int f = 0; f < 20; f++) {
    const pid_t child = fork();
    if (child == 0) {
      {
        Team own(3);
        own.for_each(100, 1, [](int64_t, int64_t) {});
      }
      const auto waves = std::make_shared<Waves>(50, 37, team.size());
      team.run(team.turn(), waves);
      const pid_t grandchild = fork();
      if (grandchild == 0) {
        team.run(team.turn(), std::make_shared<Waves>(50, 37, team.size()));
        team.~Team();
        _exit(0);
      }
      int status = 0;
      waitpid(grandchild, &status, 0);
      team.wait_idle();
      team.~Team();
      _exit(status == 0 && waves->result()[0] == waves->result()[36] ? 7 : 8);
    }
    int status = 0;
    waitpid(child, &status, 0);
    check(WIFEXITED(status) && WEXITSTATUS(status) == 7, "a child has a team of its own");
  }
  {
    const std::lock_guard<std::mutex> lock(mutex);
    stop = true;
  }
  other.join();
}
#endif

}  // namespace

// test_threads [no-forks]: without forks, for emulators whose own locks are lost in a child of several threads.
int main(int count, char** words) {
  const bool forks = count < 2 || std::string(words[1]) != "no-forks";
  for (int threads = 1; threads <= 4; threads++) {
    Team team(threads);
    test_every_piece_once(team);
    test_stages(team, 20);
    test_late_members(team, 2000);
    test_turns(team);
    test_bandwidth(team);
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    if (forks) test_forks(team);
#else
    (void)forks;
#endif
  }
  test_sizes();
  return check.finish();
}
