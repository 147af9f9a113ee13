#include "sampling/kth.h"

#include <algorithm>
#include <cfloat>
#include <functional>

#include "kernels/choice.h"

namespace forerun {

float kth_highest(const Kernels& kernels, const float* x, int n, const std::vector<float>& tops, int k, Scratch& scratch) {
  std::vector<float>& values = scratch.values;
  std::vector<int32_t>& ids = scratch.ids;
  const auto kth = [&](size_t rank) {
    std::nth_element(values.begin(), values.begin() + static_cast<long>(rank - 1), values.end(), std::greater<float>());
    return values[rank - 1];
  };
  const auto take = [&](float least) {
    const int count = kernels.collect(x, n, tops.data(), least, ids.data());
    values.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; i++) values[static_cast<size_t>(i)] = x[ids[static_cast<size_t>(i)]];
    return values.size();
  };
  const auto wanted = static_cast<size_t>(k);
  float least;
  if (2 * wanted <= tops.size()) {
    // At least k values reach the k-th highest of the tops of k or more sets of blocks.
    values = tops;
    while (values.size() >= 4 * wanted) {
      const size_t half = (values.size() + 1) / 2;
      for (size_t i = half; i < values.size(); i++) values[i - half] = std::max(values[i - half], values[i]);
      values.resize(half);
    }
    least = kth(wanted);
  } else {
    // One value of each block as a sample: most likely k or more reach what k and three deviations do there.
    values.clear();
    for (int i = kBlock / 2; i < n; i += kBlock) values.push_back(x[i]);
    const double share = static_cast<double>(k) / kBlock;
    const size_t rank = static_cast<size_t>(share + 3.0 * std::sqrt(share) + 3.0);
    least = rank < values.size() ? kth(rank) : -FLT_MAX;
  }
  if (take(std::max(least, -FLT_MAX)) < wanted && take(-FLT_MAX) < wanted) return -std::numeric_limits<float>::infinity();
  return kth(wanted);
}

}  // namespace forerun
