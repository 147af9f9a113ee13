// The cost curve t(n): seconds of a target forward over n rows, as measured beforehand, kept right by what the steps of a
// generation really take (contexts grow, machines get busy).
#pragma once
#include <cstdint>
#include <map>
#include <vector>

namespace forerun {

class CostCurve {
 public:
  // points: seconds by rows, at least for one row; between them t is linear, beyond them it goes on as between the last two
  // (or in proportion, if there is only one). most: the widest forward asked about. Throws invalid_argument.
  explicit CostCurve(const std::map<int, double>& points, int most = 64);

  int most() const { return most_; }
  // More rows never cost less: where it looks so, that is noise.
  double operator()(int n) const;
  // What so many rows more than one cost.
  double beyond_plain(int rows) const { return (*this)(1 + rows) - (*this)(1); }
  // A forward over n rows took so long. It tells of widths near by, too, from half to twice as many: none stays wrong for
  // not being tried.
  void saw(int n, double seconds);

 private:
  int most_;
  std::vector<double> base_, own_;  // own: beside one row
  std::vector<int64_t> tried_;
  double scale_ = 1.0;
  int64_t seen_ = 0, unseen_ = int64_t(1) << 20;  // measurements; of more rows since one of a single row
};

}  // namespace forerun
