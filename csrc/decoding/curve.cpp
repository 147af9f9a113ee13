#include "decoding/curve.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace forerun {
namespace {

// Weight of a new measurement for all widths, and for its own beside the others: a machine that gets slower does so for
// all, and rows must not look cheap where only single ones were seen since. Where a single row was seen not long ago, within
// about kRecent steps, the others tell of themselves.
constexpr double kLearn = 0.1, kLearnWidth = 0.03;
constexpr int kRecent = 8;
// Weight of the first measurement: what was measured at another time may be wrong altogether.
constexpr double kFirst = 0.5;
// How far, at every step, what was measured of one width goes back to what the others say; steps forgotten together.
constexpr double kForget = 0.01;
constexpr int kSome = 8;
// A measurement counts at most as this many times what was expected: other programs run too.
constexpr double kOutlier = 3.0;

}  // namespace

CostCurve::CostCurve(const std::map<int, double>& points, int most) : most_(most) {
  if (most < 1 || most > 1 << 20) throw std::invalid_argument("a cost curve of so many rows makes no sense");
  bool fine = points.count(1) == 1;
  std::vector<double> widths, seconds;
  for (const auto& [width, took] : points) {
    fine = fine && width >= 1 && took > 0.0 && std::isfinite(took);
    widths.push_back(width);
    seconds.push_back(seconds.empty() ? took : std::max(seconds.back(), took));
  }
  if (!fine) throw std::invalid_argument("a cost curve needs positive seconds, for one row at least");
  const size_t last = widths.size() - 1;
  const double beyond = last > 0 ? (seconds[last] - seconds[last - 1]) / (widths[last] - widths[last - 1]) : seconds[0];
  size_t at = 0;
  for (int n = 0; n <= most; n++) {
    while (at < last && widths[at + 1] <= n) at++;
    if (n <= widths[0]) base_.push_back(seconds[0]);
    else if (at == last) base_.push_back(seconds[last] + beyond * (n - widths[last]));
    else base_.push_back((seconds[at + 1] - seconds[at]) / (widths[at + 1] - widths[at]) * (n - widths[at]) + seconds[at]);
  }
  own_.assign(base_.size(), 1.0);
  tried_.assign(base_.size(), 0);
}

double CostCurve::operator()(int n) const {
  const auto at = static_cast<size_t>(std::min(std::max(n, 0), most_));
  return std::max(base_[at] * own_[at], base_[1]) * scale_;
}

void CostCurve::saw(int n, double seconds) {
  if (n < 1 || n > most_ || !(seconds >= 0.0)) return;
  const double off = std::min(seconds / (*this)(n), kOutlier);
  int64_t& tried = tried_[static_cast<size_t>(n)];
  const double first = kFirst / static_cast<double>(1 + tried++);
  if (n == 1) {
    scale_ *= 1.0 + std::max(kLearn, first) * (off - 1.0);
    unseen_ = 0;
  } else {
    const double all = kLearn * static_cast<double>(unseen_) / static_cast<double>(unseen_ + kRecent);
    unseen_++;
    scale_ *= 1.0 + all * (off - 1.0);
    const double change = std::max(kLearnWidth + kLearn - all, first) * (off - 1.0);
    for (int m = std::max((n + 1) / 2, 2); m <= std::min(2 * n, most_); m++) {
      const double near = static_cast<double>(std::min(m, n)) / std::max(m, n);
      own_[static_cast<size_t>(m)] *= 1.0 + change * (near * near);
    }
  }
  if (++seen_ % kSome == 0)
    for (double& own : own_) own += kSome * kForget * (1.0 - own);
}

}  // namespace forerun
