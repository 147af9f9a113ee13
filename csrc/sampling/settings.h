// What a text's parameters say about the choice of its tokens, as sampling/fused.py hands it over.
#pragma once
#include <cstdint>

#include "sampling/processor.h"

namespace forerun {

// Steps 6 to 9 of the logits pipeline (sampling/pipeline.py), and the rule.
struct ChoiceSettings {
  double temperature = 0.0;  // 0: greedy; else in [1e-4, 1e6]
  int top_k = 0;             // 0: all
  double top_p = 1.0;        // 1: all
  double log_min_p = 0.0;    // only where has_min_p
  bool has_min_p = false;
  uint64_t seed = 0;
  bool coupled = true;       // the target adds noise that drafters know; else the rejection rule
};

struct SamplingSettings {
  ProcessorSettings processing;
  ChoiceSettings choice;
};

}  // namespace forerun
