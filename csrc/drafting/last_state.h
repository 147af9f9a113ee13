// What drafters remember of a text that read the target's last hidden state alone, and one of it.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "drafting/candidates.h"
#include "drafting/text_vocabulary.h"

namespace forerun {

class LastStateDrafter {
 public:
  void begin();
  // Tokens that follow, and the target's last hidden state at the token before the last of them, [hidden] (null: unknown).
  void observe(const int32_t* tokens, int count, const float* state);
  // Forgets tokens from `length` on.
  void truncate(int length);

  int length() const { return static_cast<int>(text_.size()); }
  int32_t last() const { return text_.empty() ? 0 : text_.back(); }  // token of the text
  int hidden() const { return hidden_; }
  // Tokens of the text that the heads lack, and that the last proposal could say all the same.
  const std::vector<int32_t>& rare() const { return vocabulary_.tokens(); }

 protected:
  // own: the heads' tokens, as TextVocabulary takes them.
  LastStateDrafter(int hidden, Candidates candidates, std::shared_ptr<const TargetRows> rows, const std::vector<int32_t>& own);
  ~LastStateDrafter() = default;

  int hidden_;
  Candidates candidates_;
  TextVocabulary vocabulary_;
  std::vector<int32_t> text_;
  std::vector<float> state_;  // empty: unknown
};

}  // namespace forerun
