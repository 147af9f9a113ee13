// Steps 1 to 5 of the logits pipeline (sampling/pipeline.py): bias, penalties, bans, minimum tokens.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/kernels.h"
#include "sampling/history.h"

namespace forerun {

// The text before the place where a token is chosen: history, then path.
struct Text {
  const int32_t* history;
  int history_length;
  const int32_t* path;
  int path_length;
  int length() const { return history_length + path_length; }
};

struct ProcessorSettings {
  int vocab = 0;
  int prompt_length = 0;
  int min_tokens = 0;
  bool counts_history = false;
  float repetition = 1.0f, presence = 0.0f, frequency = 0.0f;
  std::vector<int32_t> bias_tokens;  // distinct
  std::vector<float> bias;
  std::vector<int32_t> forbidden, end_tokens;

  // Whether there is nothing to do, unless a grammar says so.
  bool idle() const { return bias.empty() && forbidden.empty() && min_tokens == 0 && !counts_history; }
};

class Processor {
 public:
  // Throws invalid_argument for ids outside the vocabulary.
  Processor(ProcessorSettings settings, const Kernels* kernels);

  // Processed logits [vocab], good until the next call; `logits` itself where there is nothing to do.
  // allowed: one bit a token, from the lowest bit of the first word on, or null.
  const float* operator()(const float* logits, const Text& text, const uint32_t* allowed);

 private:
  const uint32_t* mask(bool early, const uint32_t* allowed);
  void penalise(const uint32_t* mask);

  ProcessorSettings settings_;
  const Kernels* kernels_;
  History history_;
  std::vector<uint32_t> allowed_, allowed_early_;  // bits; empty where all are; early: end tokens are out too
  std::vector<uint32_t> both_;
  std::vector<float> row_;
};

}  // namespace forerun
