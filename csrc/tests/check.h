// Counts what holds and says what does not.
#pragma once
#include <cstdio>
#include <string>

class Checks {
 public:
  void operator()(bool holds, const std::string& what) {
    done_++;
    if (holds) return;
    if (++failed_ < 50) std::printf("FAILED %s\n", what.c_str());
  }
  // Whether `work` throws an Error that says `what`.
  template <class Error, class Work>
  void refuses(const std::string& what, Work&& work) {
    std::string said = "nothing";
    try {
      work();
    } catch (const Error& error) {
      said = error.what();
    }
    (*this)(said.find(what) != std::string::npos, "an error that says '" + what + "', not '" + said + "'");
  }
  // The summary, and main's result.
  int finish() const {
    std::printf("%ld checks, %ld failed\n", done_, failed_);
    return failed_ ? 1 : 0;
  }

 private:
  long done_ = 0, failed_ = 0;
};
