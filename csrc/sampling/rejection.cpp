#include "sampling/rejection.h"

#include <algorithm>

#include "sampling/noise.h"

namespace forerun {
namespace {

double sum(const std::vector<double>& x) { return lane_sum(x.data(), static_cast<int>(x.size())); }

void divide(std::vector<double>& x, double by) {
  for (double& value : x) value /= by;
}

// The i-th number in (0, 1) that a stream has at a position.
double uniform(uint64_t seed, uint32_t position, uint32_t stream, size_t i) {
  const auto index = static_cast<uint32_t>(i);
  return uniform_noise(philox(seed, index / 4, position, stream)[index % 4]);
}

// The token whose share of [0, 1) holds `draw`; -1: nothing is left.
int draw_from(const std::vector<double>& left, double draw) {
  double whole = 0.0;
  for (double share : left)
    if (share != 0.0) whole += share;
  const double wanted = draw * whole;
  double bound = 0.0;
  int last = -1;
  for (size_t i = 0; i < left.size(); i++) {
    if (left[i] == 0.0) continue;
    last = static_cast<int>(i);
    bound += left[i];
    if (bound > wanted) break;
  }
  return last;
}

}  // namespace

int reject(std::vector<double>& left, const std::vector<int32_t>& candidates, const double* proposal, std::vector<double>& source,
           uint64_t seed, uint32_t position) {
  const auto draw = [&](size_t i) { return uniform(seed, position, kAcceptStream, i); };
  if (proposal != nullptr) source.assign(proposal, proposal + left.size());
  for (size_t i = 0; i < candidates.size(); i++) {
    const int token = candidates[i];
    const auto at = static_cast<size_t>(token);
    const double chance = proposal == nullptr ? 1.0 : source[at];
    if (chance <= 0.0) continue;
    if (draw(i) * chance < left[at]) return token;
    if (proposal != nullptr) {
      for (size_t t = 0; t < left.size(); t++) left[t] = std::max(left[t] - source[t], 0.0);
      source[at] = 0.0;
      const double rest = sum(source);
      if (rest != 0.0) divide(source, rest);
    }
    left[at] = 0.0;
    const double total = sum(left);
    if (total <= 0.0) return token;
    divide(left, total);
  }
  return draw_from(left, draw(candidates.size()));
}

std::vector<int32_t> draw_few(std::vector<double>& left, size_t count, uint64_t seed, uint32_t position, uint32_t serial) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < count; i++) {
    const int token = draw_from(left, uniform(seed, position, kDraftStream + (serial << 8), i));
    if (token < 0) break;
    tokens.push_back(token);
    left[static_cast<size_t>(token)] = 0.0;
  }
  return tokens;
}

}  // namespace forerun
