// The k-th highest of a row.
#pragma once
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/kernels.h"

namespace forerun {

struct Scratch {
  explicit Scratch(int n) : ids(static_cast<size_t>(n)) {}
  std::vector<int32_t> ids;  // room for a row's
  std::vector<float> values;
};

// The k-th highest of x[0 .. n), 1 <= k <= n, none of them NaN. tops: what `survey` says of x.
float kth_highest(const Kernels& kernels, const float* x, int n, const std::vector<float>& tops, int k, Scratch& scratch);

// The greatest float at most x.
inline float float_below(double x) {
  const float f = static_cast<float>(x);
  return static_cast<double>(f) <= x ? f : std::nextafterf(f, -std::numeric_limits<float>::infinity());
}

}  // namespace forerun
