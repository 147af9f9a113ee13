// What a forward gives back to Python: arrays that are made when they are asked for, over buffers that are used again.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/buffer.h"

namespace forerun {

// Result arrays live in buffers that return here when Python lets go of them: fresh pages would cost more than the head.
// Used with the GIL only.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  Pool() { free_.reserve(kKept); }

  // Room for at least `count` floats, until it is destroyed.
  struct Loan {
    std::shared_ptr<Pool> pool;
    Buffer buffer;
    ~Loan() {
      if (pool->free_.size() < kKept) pool->free_.push_back(std::move(buffer));
    }
  };
  std::unique_ptr<Loan> take(size_t count) {
    std::unique_ptr<Loan> loan(new Loan{shared_from_this(), Buffer()});
    for (size_t i = 0; i < free_.size(); i++)
      if (free_[i].size() >= count * sizeof(float)) {
        loan->buffer = std::move(free_[i]);
        free_.erase(free_.begin() + static_cast<long>(i));
        return loan;
      }
    if (free_.size() >= kKept) free_.erase(free_.begin());
    loan->buffer = Buffer(count * sizeof(float), true);
    return loan;
  }

 private:
  static constexpr size_t kKept = 4;
  std::vector<Buffer> free_;
};

// Logits [rows, vocab] and features [feature_rows, states, hidden].
class Output {
 public:
  using Matrix = nanobind::ndarray<nanobind::numpy, float, nanobind::ndim<2>>;
  using Cube = nanobind::ndarray<nanobind::numpy, float, nanobind::ndim<3>>;

  // stride: floats from one row of logits to the next.
  Output(Pool& logits, Pool& features, size_t rows, size_t vocab, size_t stride, size_t feature_rows, size_t states, size_t hidden)
      : logits_(logits.take(rows * stride)), features_(features.take(feature_rows * states * hidden)), rows_(rows), vocab_(vocab),
        stride_(stride), feature_rows_(feature_rows), states_(states), hidden_(hidden) {}

  size_t rows() const { return rows_; }
  size_t vocab() const { return vocab_; }
  size_t stride() const { return stride_; }
  float* logits_data() const { return logits_->buffer.as<float>(); }
  float* features_data() const { return features_->buffer.as<float>(); }
  Matrix logits() const { return Matrix(logits_data(), {rows_, vocab_}, owner(logits_), {static_cast<int64_t>(stride_), 1}); }
  Cube features() const { return Cube(features_data(), {feature_rows_, states_, hidden_}, owner(features_)); }

 private:
  using Loan = std::shared_ptr<Pool::Loan>;
  static nanobind::capsule owner(const Loan& loan) {
    auto* held = new Loan(loan);
    return nanobind::capsule(held, [](void* p) noexcept { delete static_cast<Loan*>(p); });
  }

  Loan logits_, features_;
  size_t rows_, vocab_, stride_, feature_rows_, states_, hidden_;
};

}  // namespace forerun
