// How often tokens have occurred, kept from call to call while the text grows.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

class History {
 public:
  // prompt_length: tokens before the answer; only the answer's are counted.
  History(int vocab, int prompt_length);

  // Counts history[0 .. n) and path[0 .. m) after it. Of an earlier call's history, what is new at the end is counted
  // (all of it, if it has become shorter); an earlier path is forgotten. Throws invalid_argument, with nothing changed, if
  // an id is none of the vocabulary's.
  void set(const int32_t* history, int n, const int32_t* path, int m);

  const std::vector<int32_t>& seen() const { return seen_; }  // each id that occurs in prompt or answer, once
  const std::vector<int32_t>& used() const { return used_; }  // each that occurs in the answer, once
  int count(int token) const { return counts_[static_cast<size_t>(token)]; }  // in the answer

 private:
  void check(const int32_t* tokens, int n) const;
  void add(int token, bool answer);
  void undo_path();

  int prompt_length_;
  int counted_ = 0;  // tokens of the history that are in
  std::vector<int32_t> counts_;
  std::vector<uint8_t> is_seen_;
  std::vector<int32_t> seen_, used_;
  std::vector<int32_t> path_counted_;          // ids of the path's part that belongs to the answer
  size_t seen_before_ = 0, used_before_ = 0;  // sizes of seen_ and used_ without the path
};

}  // namespace forerun
