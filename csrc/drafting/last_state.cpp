#include "drafting/last_state.h"

#include <utility>

namespace forerun {

LastStateDrafter::LastStateDrafter(int hidden, Candidates candidates, std::shared_ptr<const TargetRows> rows, const std::vector<int32_t>& own)
    : hidden_(hidden), candidates_(std::move(candidates)), vocabulary_(std::move(rows), own) {}

void LastStateDrafter::begin() {
  text_.clear();
  vocabulary_.truncate(0);
  state_.clear();
}

void LastStateDrafter::observe(const int32_t* tokens, int count, const float* state) {
  if (count < 1) return;
  text_.insert(text_.end(), tokens, tokens + count);
  if (state == nullptr) state_.clear();
  else state_.assign(state, state + hidden_);
}

void LastStateDrafter::truncate(int length) {
  if (length < 1 || length >= this->length()) return;
  text_.resize(static_cast<size_t>(length));
  vocabulary_.truncate(length);
  state_.clear();
}

}  // namespace forerun
