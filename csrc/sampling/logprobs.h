// Log-probabilities of tokens in the model's own distribution, to the bit as sampling/logprobs.py has them.
#pragma once
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/kernels.h"

namespace forerun {

struct Logprobs {
  double own = 0.0;                          // of the token asked for
  std::vector<std::pair<int, double>> top;  // the best first, of equals the lower id
};

// False, and nothing computed, where the logits hold NaN or their highest is infinite. 0 <= token < n, top <= n.
bool log_probabilities(const Kernels& kernels, const float* logits, int n, int token, int top, Logprobs& out);

}  // namespace forerun
