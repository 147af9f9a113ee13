#include "sampling/logprobs.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/choice.h"
#include "sampling/arithmetic.h"
#include "sampling/kth.h"

namespace forerun {

bool log_probabilities(const Kernels& kernels, const float* logits, int n, int token, int top, Logprobs& out) {
  std::vector<float> tops(static_cast<size_t>(n + kBlock - 1) / kBlock);
  const float best = kernels.survey(logits, n, tops.data());
  if (!std::isfinite(best)) return false;
  const double shift = best + natural_log(kernels.exp_sum(logits, n, tops.data(), -std::numeric_limits<float>::infinity(), 1.0, best, nullptr));
  const auto logprob = [&](int id) { return logits[id] - shift; };
  out.own = logprob(token);
  out.top.clear();
  if (top == 0) return true;
  Scratch scratch(n);
  const float least = kth_highest(kernels, logits, n, tops, top, scratch);
  // values that differ may be equals once the shift is taken off: a little more is looked at
  const float from = float_below(least - 1e-15 * (std::fabs(static_cast<double>(least)) + std::fabs(shift)));
  const int count = kernels.collect(logits, n, tops.data(), from, scratch.ids.data());
  for (int i = 0; i < count; i++) out.top.emplace_back(scratch.ids[static_cast<size_t>(i)], logprob(scratch.ids[static_cast<size_t>(i)]));
  const auto in_order = [](const auto& a, const auto& b) { return a.second > b.second || (a.second == b.second && a.first < b.first); };
  std::sort(out.top.begin(), out.top.end(), in_order);
  out.top.resize(static_cast<size_t>(top));
  return true;
}

}  // namespace forerun
