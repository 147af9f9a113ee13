#include "sampling/kth.h"

#include <algorithm>
#include <cfloat>

#include "kernels/choice.h"

namespace forerun {

float kth_highest(const Kernels& kernels, const float* x, int n, const std::vector<float>& tops, int k, Scratch& scratch) {
  std::vector<float>& values = scratch.values;
  std::vector<int32_t>& ids = scratch.ids;
  const auto kth = [&](int rank) { return kernels.kth_of(values.data(), static_cast<int>(values.size()), rank, ids.data()); };
  const auto take = [&](float least) {
    const int count = kernels.collect(x, n, tops.data(), least, ids.data());
    values.resize(static_cast<size_t>(count));
    for (int i = 0; i < count; i++) values[static_cast<size_t>(i)] = x[ids[static_cast<size_t>(i)]];
    return count;
  };
  float least;
  if (2 * static_cast<size_t>(k) <= tops.size()) {
    values = tops;  // k values at least reach the k-th highest of the blocks' highest
    least = kth(k);
  } else {
    // One value of each block as a sample: most likely k or more reach what k and three deviations do there.
    values.clear();
    for (int i = kBlock / 2; i < n; i += kBlock) values.push_back(x[i]);
    const double share = static_cast<double>(k) / kBlock;
    const int rank = static_cast<int>(share + 3.0 * std::sqrt(share) + 3.0);
    least = rank < static_cast<int>(values.size()) ? kth(rank) : -FLT_MAX;
  }
  if (take(std::max(least, -FLT_MAX)) < k && take(-FLT_MAX) < k) return -std::numeric_limits<float>::infinity();
  return kth(k);
}

}  // namespace forerun
