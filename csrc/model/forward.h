// One forward of a decoder, stage by stage. forward.cpp has the layers; entry.cpp has what comes before the first one.
#pragma once
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "kernels/kernels.h"
#include "model/decoder.h"
#include "model/plan.h"
#include "runtime/threads.h"

namespace forerun {

// Rows of a linear layer's inputs, prepared once for each kind that its weights ask for.
struct Prepared {
  static constexpr int kKinds = 3;  // RowKind values
  uint8_t* rows[kKinds] = {nullptr, nullptr, nullptr};
};

// One forward, done by all members of the team together. What is computed does not depend on which thread computes it.
class Forward : public Job {
 public:
  Forward(Decoder& decoder, Batch batch, Plan plan, float* logits, float* features)
      : Job(kStagesOfLayer * decoder.shape_.layers + kOtherStages, decoder.team_->size()), d_(decoder), shape_(decoder.shape_),
        k_(*decoder.kernels_), threads_(decoder.team_->size()), batch_(std::move(batch)), plan_(std::move(plan)), logits_(logits),
        features_(features), n_(batch_.rows()), wanted_(static_cast<int>(batch_.logits.size())), last_from_(first_asked()) {
    per_kv_ = shape_.heads / shape_.kv_heads;
    value_stride_ = (shape_.head_dim + 15) / 16 * 16;
    sum_stride_ = kSumHeader + value_stride_;
    heads_in_unit_ = 16 / std::gcd(16, shape_.head_dim);
    alone_ = n_ <= kPrivateRows || threads_ == 1;
    // Groups of queries as they are, unless that leaves threads idle for more than a tenth of the time.
    const int units = static_cast<int>(plan_.groups.size()) * shape_.kv_heads, rounds = (units + threads_ - 1) / threads_;
    split_ = plan_.runs > 1 && 9 * rounds * threads_ > 10 * units;
    if (split_) runs_done_.reset(new std::atomic<int>[static_cast<size_t>(units)]());
    lay_out(nullptr);
  }

  size_t bytes() const { return bytes_; }
  void lay_out(uint8_t* base);
  void work(Member& me) noexcept override;

 private:
  static constexpr int kStagesOfLayer = 9, kOtherStages = 7;
  // Up to here every thread prepares all rows for itself: cheaper than to wait, and to have them brought over.
  static constexpr int kPrivateRows = 12;
  static constexpr int kPieceTiles = 24;  // tiles handed out at a time at most, an even number
  static constexpr int kRowBlock = 64;    // rows whose outputs a thread holds at a time
  using Clock = std::chrono::steady_clock;

  // Heads that are projected together, so that they begin on a tile.
  struct HeadUnit {
    const PackedLinear& w;
    int role;  // 0 queries, 1 keys, 2 values
    int first, count, tile;
  };

  // Three pieces a thread: each begins slowly, but who has fallen behind shall be helped.
  int piece(int tiles) const { return std::clamp(tiles / (3 * threads_) / 2 * 2, 2, kPieceTiles); }
  // After the last layer's keys and values, rows that nobody asks for are left alone: they are those before this one.
  int first_row(int layer) const { return layer + 1 < shape_.layers ? 0 : last_from_; }
  int first_asked() const;
  RowKind kind_of(const PackedLinear& w) const { return k_.row_kind(w.view().format); }
  unsigned kinds_of(std::initializer_list<const PackedLinear*> weights) const;
  float* hidden_row(int64_t i) const { return hidden_ + static_cast<size_t>(i) * shape_.hidden; }
  uint8_t* prepared_row(const Prepared& p, RowKind kind, int inputs, int64_t i) const {
    return p.rows[static_cast<int>(kind)] + static_cast<size_t>(i) * k_.row_bytes(kind, inputs);
  }
  void prepare_all(const Prepared& into, unsigned kinds, int inputs, int64_t i, const float* x) const;
  const void* block(const Prepared& p, const PackedLinear& w, int first) const {
    return prepared_row(p, kind_of(w), w.view().inputs, first);
  }

  // The inputs of a linear stage: where rows are many they are prepared in a stage of their own, shared by all; where they
  // are few every thread that gets work prepares them all for itself, which is cheaper than one more stage.
  template <class PrepareRow>
  class Inputs {
   public:
    Inputs(Forward& f, Member& me, int first, int rows, PrepareRow prepare)
        : into_(f.alone_ ? f.private_[me.thread].rows : f.shared_), first_(first), rows_(rows), ready_(!f.alone_), prepare_(prepare) {
      if (!f.alone_) f.share(me, rows - first, 1, [&](int64_t i, int64_t) { prepare_(into_, first + i); });
    }
    const Prepared& get() {
      for (int i = first_; !ready_ && i < rows_; i++) prepare_(into_, i);
      ready_ = true;
      return into_;
    }

   private:
    const Prepared into_;
    const int first_, rows_;
    bool ready_;
    PrepareRow prepare_;
  };
  template <class PrepareRow>
  Inputs<PrepareRow> inputs(Member& me, int first, int rows, PrepareRow prepare) {
    return Inputs<PrepareRow>(*this, me, first, rows, prepare);
  }
  auto normed(Member& me, const std::vector<float>& norm, unsigned kinds, int first);
  // A drafting head's embeddings and states.
  auto joined(Member& me, unsigned kinds) {
    return inputs(me, 0, n_, [this, kinds](const Prepared& into, int64_t i) {
      prepare_all(into, kinds, 2 * shape_.hidden, i, joined_ + static_cast<size_t>(i) * 2 * shape_.hidden);
    });
  }
  auto attended(Member& me, unsigned kinds, int first);

  void embed(Member& me);
  void join(int64_t i);
  void tap(Member& me, int state);
  void project_heads(Member& me, const LayerWeights& layer, int index);
  template <class Rows>
  void project_from(Member& me, const LayerWeights& layer, int index, Rows x);
  int head_units() const;
  HeadUnit head_unit(const LayerWeights& layer, int64_t u) const;
  void project_unit(int thread, const LayerWeights& layer, int index, const Prepared& x, const HeadUnit& unit);
  void finish_head(int thread, const LayerWeights& layer, int index, int role, int row, int head, const float* out);
  void attention(Member& me, int index);
  // Row and head of a group's query i.
  int row_of(const QueryGroup& group, int i) const { return group.first_row + (group.begin + i) / per_kv_; }
  size_t query_of(const QueryGroup& group, int kv_head, int i) const {
    return static_cast<size_t>(row_of(group, i)) * shape_.heads + kv_head * per_kv_ + (group.begin + i) % per_kv_;
  }
  float* split_sums(const QueryGroup& group, int kv_head, int run) const {
    const size_t first = static_cast<size_t>(group.first_row) * per_kv_ + group.begin;  // of the key-value head's queries
    return sums_ + ((static_cast<size_t>(run) * shape_.kv_heads + kv_head) * n_ * per_kv_ + first) * sum_stride_;
  }
  void attend_all(int thread, int index, int group, int kv_head);
  void attend_one(int thread, int index, int group, int kv_head, int run);
  void take_queries(int thread, int index, const QueryGroup& group, int kv_head);
  void sum_run(int thread, int index, const QueryGroup& group, int kv_head, int run, float* sums);
  void finish_group(const QueryGroup& group, int kv_head, const float* sums);
  void add_linear(int thread, const PackedLinear& w, const Prepared& x, int first, int begin, int end);
  void project_out(Member& me, const LayerWeights& layer, int first);
  void gate_and_up(Member& me, const LayerWeights& layer, int first);
  void project_down(Member& me, int index);
  void last_state(Member& me);
  const PackedLinear& head_weights() const { return d_.weights_->head.empty() ? d_.weights_->embed : d_.weights_->head; }
  void head(Member& me);
  // Ask for the weights that the member reads first in a stage to come, so that they come while it waits.
  void ask_for(const Member& me, const PackedLinear& w) const;
  void ask_for_heads(const Member& me, const LayerWeights& layer) const;
  void lap(const Member& me, double Profile::* part);

  Decoder& d_;
  const DecoderShape& shape_;
  const Kernels& k_;
  const int threads_;
  const Batch batch_;
  const Plan plan_;
  float* logits_;
  float* features_;
  const int n_, wanted_, last_from_;
  int per_kv_, value_stride_, sum_stride_, heads_in_unit_;
  bool alone_;  // threads prepare rows for themselves
  bool split_;  // runs of a group go to different threads
  std::unique_ptr<std::atomic<int>[]> runs_done_;  // [kv_heads][groups], when split
  size_t bytes_ = 0;

  float *hidden_, *joined_, *cos_, *sin_, *queries_, *attended_, *sums_;
  Prepared shared_, activation_;
  struct Private {
    Prepared rows;
    float *norm, *out, *out2, *scratch, *sums;
    Query* queries;
    float* q;  // queries, as pack_query puts them
  };
  std::vector<Private> private_;
  Clock::time_point mark_;
};

}  // namespace forerun
