#include "sampling/history.h"

#include <algorithm>
#include <stdexcept>

namespace forerun {

History::History(int vocab, int prompt_length)
    : prompt_length_(prompt_length), counts_(static_cast<size_t>(vocab)), is_seen_(static_cast<size_t>(vocab)) {}

void History::set(const int32_t* history, int n, const int32_t* path, int m) {
  const int kept = n < counted_ ? 0 : counted_;
  check(history + kept, n - kept);
  check(path, m);
  undo_path();
  if (n < counted_) {
    for (int32_t token : seen_) is_seen_[static_cast<size_t>(token)] = 0;
    for (int32_t token : used_) counts_[static_cast<size_t>(token)] = 0;
    seen_.clear();
    used_.clear();
  }
  for (int i = kept; i < n; i++) add(history[i], i >= prompt_length_);
  counted_ = n;
  seen_before_ = seen_.size();
  used_before_ = used_.size();
  for (int i = 0; i < m; i++) {
    const bool answer = n + i >= prompt_length_;
    if (answer) path_counted_.push_back(path[i]);
    add(path[i], answer);
  }
}

void History::check(const int32_t* tokens, int n) const {
  const auto vocab = static_cast<uint32_t>(counts_.size());
  for (int i = 0; i < n; i++)
    if (static_cast<uint32_t>(tokens[i]) >= vocab) throw std::invalid_argument("a token id outside the vocabulary");
}

void History::add(int token, bool answer) {
  const auto i = static_cast<size_t>(token);
  if (!is_seen_[i]) {
    is_seen_[i] = 1;
    seen_.push_back(token);
  }
  if (answer && counts_[i]++ == 0) used_.push_back(token);
}

void History::undo_path() {
  for (; seen_.size() > seen_before_; seen_.pop_back()) is_seen_[static_cast<size_t>(seen_.back())] = 0;
  for (int32_t token : path_counted_) counts_[static_cast<size_t>(token)]--;
  path_counted_.clear();
  used_.resize(used_before_);
}

}  // namespace forerun
