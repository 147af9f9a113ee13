#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "model/plan.h"
#include "runtime/fences.h"

namespace forerun {
namespace {

constexpr int kPrivateRows = 4;   // up to here every thread prepares all rows for itself: cheaper than a barrier
constexpr int kRowBlock = 64;     // rows whose outputs a thread holds at a time
constexpr int kPieceTiles = 8;    // tiles handed out at a time at most, an even number
constexpr int kKinds = 3;         // RowKind values

size_t round64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Carves arrays out of one buffer: the first pass counts, the second one points.
class Workspace {
 public:
  Workspace(uint8_t* base, size_t bytes) : base_(base) {
    if (base) allow(base, bytes);
  }
  template <class T>
  T* take(size_t count) {
    T* p = base_ ? reinterpret_cast<T*>(base_ + used_) : nullptr;
    const size_t bytes = count * sizeof(T), room = round64(bytes) + kFence;
    if (base_) forbid(base_ + used_ + bytes, room - bytes);
    used_ += room;
    return p;
  }
  size_t used() const { return used_; }

 private:
  uint8_t* base_;
  size_t used_ = 0;
};

// Rows of a linear layer's inputs, prepared once for each kind that its weights ask for.
struct Prepared {
  uint8_t* rows[kKinds] = {nullptr, nullptr, nullptr};
};

using Clock = std::chrono::steady_clock;

std::vector<Cache::Use> use_all(std::vector<Cache*> caches) {
  std::sort(caches.begin(), caches.end(), std::less<Cache*>());
  if (std::adjacent_find(caches.begin(), caches.end()) != caches.end()) throw std::invalid_argument("forward: a cache is named twice");
  std::vector<Cache::Use> uses;
  uses.reserve(caches.size());
  for (Cache* cache : caches) uses.emplace_back(*cache);
  return uses;
}

}  // namespace

// One forward, done by all members of the team together. What is computed does not depend on which thread computes it.
class Forward : public Job {
 public:
  Forward(Decoder& decoder, Batch batch, Plan plan, float* logits, float* features)
      : Job(kStagesOfLayer * decoder.shape_.layers + kOtherStages), d_(decoder), shape_(decoder.shape_), k_(*decoder.kernels_),
        threads_(decoder.team_->size()), batch_(std::move(batch)), plan_(std::move(plan)), logits_(logits),
        features_(features), n_(batch_.rows()), wanted_(static_cast<int>(batch_.logits.size())) {
    per_kv_ = shape_.heads / shape_.kv_heads;
    value_stride_ = (shape_.head_dim + 15) / 16 * 16;
    part_stride_ = kPartHeader + value_stride_;
    alone_ = n_ <= kPrivateRows || threads_ == 1;
    // Groups of queries as they are, unless that leaves threads idle for more than a tenth of the time.
    const int units = static_cast<int>(plan_.groups.size()) * shape_.kv_heads, rounds = (units + threads_ - 1) / threads_;
    split_ = plan_.chunks > 1 && 9 * rounds * threads_ > 10 * units;
    lay_out(nullptr);
  }

  size_t bytes() const { return bytes_; }
  void lay_out(uint8_t* base);
  void work(Member& me) noexcept override;

 private:
  static constexpr int kStagesOfLayer = 9, kOtherStages = 7;

  int piece(int tiles) const { return std::clamp(tiles / (8 * threads_) / 2 * 2, 2, kPieceTiles); }
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
    Inputs(Forward& f, Member& me, int rows, PrepareRow prepare)
        : into_(f.alone_ ? f.private_[me.thread].rows : f.shared_), rows_(rows), ready_(!f.alone_), prepare_(prepare) {
      if (!f.alone_) f.share(me, rows, 1, [&](int64_t i, int64_t) { prepare_(into_, i); });
    }
    const Prepared& get() {
      for (int i = 0; !ready_ && i < rows_; i++) prepare_(into_, i);
      ready_ = true;
      return into_;
    }

   private:
    const Prepared into_;
    const int rows_;
    bool ready_;
    PrepareRow prepare_;
  };
  template <class PrepareRow>
  Inputs<PrepareRow> inputs(Member& me, int rows, PrepareRow prepare) {
    return Inputs<PrepareRow>(*this, me, rows, prepare);
  }
  auto normed(Member& me, const std::vector<float>& norm, unsigned kinds);
  auto joined(Member& me, unsigned kinds);
  auto attended(Member& me, unsigned kinds);

  void embed(Member& me);
  void join(int64_t i);
  void tap(Member& me, int state);
  void project_heads(Member& me, const LayerWeights& layer, int index);
  template <class Rows>
  void project_from(Member& me, const LayerWeights& layer, int index, Rows x);
  void project_unit(int thread, const LayerWeights& layer, int index, const Prepared& x, int role, int unit);
  void finish_head(int thread, const LayerWeights& layer, int index, int role, int row, int head, const float* out);
  void attention(Member& me, int index);
  void attend_group(int thread, int index, const QueryGroup& group, int kv_head, int first_chunk, int last_chunk);
  void add_linear(int thread, const PackedLinear& w, const Prepared& x, int begin, int end);
  void project_out(Member& me, const LayerWeights& layer);
  void gate_and_up(Member& me, const LayerWeights& layer);
  void project_down(Member& me, const LayerWeights& layer);
  void last_state(Member& me);
  void head(Member& me);
  void lap(const Member& me, double Profile::* part);

  Decoder& d_;
  const DecoderShape& shape_;
  const Kernels& k_;
  const int threads_;
  const Batch batch_;
  const Plan plan_;
  float* logits_;
  float* features_;
  const int n_, wanted_;
  int per_kv_, value_stride_, part_stride_;
  bool alone_;  // threads prepare rows for themselves
  bool split_;  // chunks of a group go to different threads
  size_t bytes_ = 0;

  float *hidden_, *joined_, *cos_, *sin_, *queries_, *attended_, *parts_;
  Prepared shared_, activation_;
  struct Private {
    Prepared rows;
    float *norm, *out, *out2, *scratch, *parts;
    Query* queries;
    float* q;  // [head_dim][kMaxQueries]
  };
  std::vector<Private> private_;
  Clock::time_point mark_;
};

void Forward::lay_out(uint8_t* base) {
  Workspace space(base, bytes_);
  const size_t n = n_, heads = shape_.heads, half = shape_.head_dim / 2;
  const int widest = std::max({shape_.hidden, shape_.heads * shape_.head_dim, shape_.intermediate});
  hidden_ = space.take<float>(n * shape_.hidden);
  const int pair = d_.weights_->entry.kind == Entry::Kind::tokens ? 0 : 2 * shape_.hidden;
  joined_ = space.take<float>(n * pair);
  cos_ = space.take<float>(n * half);
  sin_ = space.take<float>(n * half);
  queries_ = space.take<float>(n * heads * shape_.head_dim);
  attended_ = space.take<float>(n * heads * shape_.head_dim);
  parts_ = space.take<float>(split_ ? static_cast<size_t>(plan_.chunks) * n * heads * part_stride_ : 0);
  const auto prepared = [&](Prepared& p, int inputs) {
    for (int kind = 0; kind < kKinds; kind++)
      p.rows[kind] = space.take<uint8_t>(n * k_.row_bytes(static_cast<RowKind>(kind), inputs));
  };
  const int row_inputs = std::max({shape_.hidden, shape_.heads * shape_.head_dim, pair});
  if (!alone_) prepared(shared_, row_inputs);
  prepared(activation_, shape_.intermediate);
  private_.resize(static_cast<size_t>(threads_));
  const size_t block = std::min<size_t>(n, kRowBlock);
  const size_t unit_width = std::max(kPieceTiles * kTile, std::lcm(16, shape_.head_dim));
  for (Private& p : private_) {
    if (alone_) prepared(p.rows, row_inputs);
    p.norm = space.take<float>(widest + 16);
    p.out = space.take<float>(block * unit_width);
    p.out2 = space.take<float>(block * unit_width);
    p.scratch = space.take<float>(k_.attend_scratch(plan_.tail_blocks) + 2 * value_stride_);
    p.parts = space.take<float>(static_cast<size_t>(2) * kMaxQueries * part_stride_);
    p.queries = space.take<Query>(kMaxQueries);
    p.q = space.take<float>(static_cast<size_t>(shape_.head_dim) * kMaxQueries);
  }
  bytes_ = space.used();
}

void Forward::work(Member& me) noexcept {
  if (me.thread == 0) mark_ = Clock::now();
  embed(me);
  lap(me, &Profile::other);
  for (int l = 0; l < shape_.layers; l++) {
    const LayerWeights& layer = d_.weights_->layers[l];
    tap(me, l);
    project_heads(me, layer, l);
    lap(me, &Profile::linear);
    attention(me, l);
    lap(me, &Profile::attention);
    project_out(me, layer);
    gate_and_up(me, layer);
    project_down(me, layer);
    lap(me, &Profile::linear);
  }
  last_state(me);
  head(me);
  lap(me, &Profile::head);
}

void Forward::lap(const Member& me, double Profile::* part) {
  if (me.thread != 0) return;
  const auto now = Clock::now();
  d_.profile_.*part += std::chrono::duration<double>(now - mark_).count();
  mark_ = now;
}

unsigned Forward::kinds_of(std::initializer_list<const PackedLinear*> weights) const {
  unsigned kinds = 0;
  for (const PackedLinear* w : weights) kinds |= 1u << static_cast<int>(kind_of(*w));
  return kinds;
}

void Forward::prepare_all(const Prepared& into, unsigned kinds, int inputs, int64_t i, const float* x) const {
  for (int kind = 0; kind < kKinds; kind++)
    if (kinds >> kind & 1u) {
      const RowKind k = static_cast<RowKind>(kind);
      k_.prepare(k, x, inputs, 0, inputs, prepared_row(into, k, inputs, i));
      if (k == RowKind::q8) k_.refine(x, inputs, prepared_row(into, k, inputs, i));
    }
}

// Copies hidden state `state` of all rows where it was asked for.
void Forward::tap(Member& me, int state) {
  const size_t taps = batch_.taps.size();
  for (size_t t = 0; t < taps; t++)
    if (batch_.taps[t] == state)
      return share(me, n_, 1, [&](int64_t i, int64_t) {
        for (size_t u = t; u < taps; u++)
          if (batch_.taps[u] == state)
            std::memcpy(features_ + (i * taps + u) * shape_.hidden, hidden_row(i), shape_.hidden * sizeof(float));
      });
}

// The hidden state of every row, normed if there is a norm.
auto Forward::normed(Member& me, const std::vector<float>& norm, unsigned kinds) {
  return inputs(me, n_, [this, &norm, kinds, mine = private_[me.thread].norm](const Prepared& into, int64_t i) {
    const float* x = hidden_row(i);
    if (!norm.empty()) {
      k_.rms_norm(x, norm.data(), shape_.hidden, shape_.norm_eps, mine);
      x = mine;
    }
    prepare_all(into, kinds, shape_.hidden, i, x);
  });
}

// A drafting head's embeddings and states.
auto Forward::joined(Member& me, unsigned kinds) {
  return inputs(me, n_, [this, kinds](const Prepared& into, int64_t i) {
    prepare_all(into, kinds, 2 * shape_.hidden, i, joined_ + static_cast<size_t>(i) * 2 * shape_.hidden);
  });
}

// The attention's output of every row, merged here if its chunks were apart.
auto Forward::attended(Member& me, unsigned kinds) {
  return inputs(me, n_, [this, kinds, &mine = private_[me.thread]](const Prepared& into, int64_t i) {
    const int width = shape_.heads * shape_.head_dim;
    const float* x = attended_ + static_cast<size_t>(i) * width;
    if (split_) {
      for (int h = 0; h < shape_.heads; h++) {
        mine.parts[0] = -INFINITY;
        for (int chunk = 0; chunk * kChunk <= plan_.rows[i].position; chunk++)
          k_.merge(mine.parts, parts_ + ((static_cast<size_t>(chunk) * n_ + i) * shape_.heads + h) * part_stride_, value_stride_);
        k_.finish(mine.parts, shape_.head_dim, mine.norm + h * shape_.head_dim);
      }
      x = mine.norm;
    }
    prepare_all(into, kinds, width, i, x);
  });
}

// Embeddings, and the rotary angles of each row, in float32 as transformers computes them.
void Forward::embed(Member& me) {
  const int half = shape_.head_dim / 2;
  share(me, n_, 1, [&](int64_t i, int64_t) {
    if (d_.weights_->entry.kind == Entry::Kind::tokens) d_.weights_->embed.unpack_row(batch_.tokens[i], hidden_row(i));
    else join(i);
    const float position = static_cast<float>(plan_.rows[i].position);
    for (int j = 0; j < half; j++) {
      const double angle = position * shape_.inv_freq[j];
      cos_[i * half + j] = static_cast<float>(std::cos(angle)) * shape_.rope_scale;
      sin_[i * half + j] = static_cast<float>(std::sin(angle)) * shape_.rope_scale;
    }
  });
  if (d_.weights_->entry.kind != Entry::Kind::eagle) return;
  const PackedLinear& fc = d_.weights_->entry.fc;
  auto x = joined(me, kinds_of({&fc}));
  share(me, fc.view().tiles, piece(fc.view().tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, fc, x.get(), static_cast<int>(begin), static_cast<int>(end));
  });
}

// A drafting head's row: its token's embedding and its state side by side, and where the residual begins.
void Forward::join(int64_t i) {
  const Entry& entry = d_.weights_->entry;
  const int hidden = shape_.hidden;
  float *embedding = joined_ + static_cast<size_t>(i) * 2 * hidden, *state = embedding + hidden;
  d_.weights_->embed.unpack_row(batch_.tokens[i], embedding);
  std::memcpy(state, batch_.states.data() + static_cast<size_t>(i) * hidden, hidden * sizeof(float));
  float* residual = hidden_row(i);
  if (entry.kind == Entry::Kind::eagle) std::fill(residual, residual + hidden, 0.0f);
  else std::memcpy(residual, state, hidden * sizeof(float));
  if (!entry.embed_norm.empty()) k_.rms_norm(embedding, entry.embed_norm.data(), hidden, shape_.norm_eps, embedding);
  if (!entry.state_norm.empty()) k_.rms_norm(state, entry.state_norm.data(), hidden, shape_.norm_eps, state);
  if (entry.residual_is_normed) std::memcpy(residual, state, hidden * sizeof(float));
}

// Queries, keys and values, whole heads at a time, so that norms, rotation and storing follow at once.
void Forward::project_heads(Member& me, const LayerWeights& layer, int index) {
  const unsigned kinds = kinds_of({&layer.q, &layer.k, &layer.v});
  if (index == 0 && d_.weights_->entry.kind == Entry::Kind::eagle3) project_from(me, layer, index, joined(me, kinds));
  else project_from(me, layer, index, normed(me, layer.input_norm, kinds));
}

template <class Rows>
void Forward::project_from(Member& me, const LayerWeights& layer, int index, Rows x) {
  const int heads_in_unit = 16 / std::gcd(16, shape_.head_dim);  // so that a unit begins on a tile
  const int q_units = (shape_.heads + heads_in_unit - 1) / heads_in_unit;
  const int kv_units = (shape_.kv_heads + heads_in_unit - 1) / heads_in_unit;
  share(me, q_units + 2 * kv_units, 1, [&](int64_t u, int64_t) {
    const int unit = static_cast<int>(u);
    if (unit < q_units) project_unit(me.thread, layer, index, x.get(), 0, unit);
    else if (unit < q_units + kv_units) project_unit(me.thread, layer, index, x.get(), 1, unit - q_units);
    else project_unit(me.thread, layer, index, x.get(), 2, unit - q_units - kv_units);
  });
}

// role: 0 queries, 1 keys, 2 values
void Forward::project_unit(int thread, const LayerWeights& layer, int index, const Prepared& x, int role, int unit) {
  const PackedLinear& w = role == 0 ? layer.q : role == 1 ? layer.k : layer.v;
  const int all = role == 0 ? shape_.heads : shape_.kv_heads, dim = shape_.head_dim;
  const int heads_in_unit = 16 / std::gcd(16, dim);
  const int first = unit * heads_in_unit, count = std::min(heads_in_unit, all - first);
  const int tile = first * dim / kTile, tiles = (count * dim + kTile - 1) / kTile;
  float* out = private_[thread].out;
  for (int r = 0; r < n_; r += kRowBlock) {
    const int rows = std::min(kRowBlock, n_ - r);
    k_.linear(w.view(), block(x, w, r), rows, tile, tile + tiles, out, static_cast<size_t>(tiles) * kTile);
    for (int i = 0; i < rows; i++)
      for (int h = 0; h < count; h++)
        finish_head(thread, layer, index, role, r + i, first + h, out + static_cast<size_t>(i) * tiles * kTile + h * dim);
  }
}

void Forward::finish_head(int thread, const LayerWeights& layer, int index, int role, int row, int head, const float* out) {
  const int dim = shape_.head_dim, half = dim / 2;
  float* padded = private_[thread].scratch;
  std::memcpy(padded, out, dim * sizeof(float));
  for (int i = dim; i < value_stride_; i++) padded[i] = 0.0f;
  const RowPlan& plan = plan_.rows[row];
  if (role == 2) return k_.store_value(plan.cache->head(index, head), plan.slot, padded);
  const std::vector<float>& norm = role == 0 ? layer.q_norm : layer.k_norm;
  if (!norm.empty()) k_.rms_norm(padded, norm.data(), dim, shape_.norm_eps, padded);
  k_.rope(padded, cos_ + static_cast<size_t>(row) * half, sin_ + static_cast<size_t>(row) * half, half);
  if (role == 1) return k_.store_key(plan.cache->head(index, head), plan.slot, padded, padded + value_stride_);
  k_.scale(padded, 1.0f / std::sqrt(static_cast<float>(dim)), dim);
  std::memcpy(queries_ + (static_cast<size_t>(row) * shape_.heads + head) * dim, padded, dim * sizeof(float));
}

void Forward::attention(Member& me, int index) {
  const int64_t groups = static_cast<int64_t>(plan_.groups.size()), units = groups * shape_.kv_heads;
  share(me, units * (split_ ? plan_.chunks : 1), 1, [&](int64_t u, int64_t) {
    const QueryGroup& group = plan_.groups[u % groups];
    const int kv_head = static_cast<int>(u / groups % shape_.kv_heads), chunk = static_cast<int>(u / units);
    if (split_) attend_group(me.thread, index, group, kv_head, chunk, chunk);
    else attend_group(me.thread, index, group, kv_head, 0, group.chunks - 1);
  });
}

// Chunks first_chunk..last_chunk of a group: parts kept apart when split, else merged in order and finished.
void Forward::attend_group(int thread, int index, const QueryGroup& group, int kv_head, int first_chunk, int last_chunk) {
  Private& mine = private_[thread];
  const int count = group.end - group.begin, dim = shape_.head_dim;
  const auto row_of = [&](int i) { return group.first_row + (group.begin + i) / per_kv_; };
  const auto query_of = [&](int i) {
    return static_cast<size_t>(row_of(i)) * shape_.heads + kv_head * per_kv_ + (group.begin + i) % per_kv_;
  };
  for (int i = 0; i < count; i++) {
    const RowPlan& row = plan_.rows[row_of(i)];
    const int length = row.position + 1, first = shape_.window > 0 ? std::max(0, length - shape_.window) : 0;
    mine.queries[i] = {first, row.prefix, plan_.tails.data() + row.tail, length};
    const float* q = queries_ + query_of(i) * dim;
    for (int d = 0; d < dim; d++) mine.q[d * kMaxQueries + i] = q[d];
  }
  const KvHead kv = plan_.rows[group.first_row].cache->head(index, kv_head);
  float* sums = mine.parts + static_cast<size_t>(kMaxQueries) * part_stride_;
  for (int i = 0; i < count; i++) sums[i * part_stride_] = -INFINITY;
  for (int chunk = first_chunk; chunk <= last_chunk; chunk++) {
    k_.attend(kv, mine.q, mine.queries, count, chunk, mine.scratch, plan_.tail_blocks, mine.parts, part_stride_);
    for (int i = 0; i < count; i++) {
      const float* part = mine.parts + static_cast<size_t>(i) * part_stride_;
      if (!split_) k_.merge(sums + static_cast<size_t>(i) * part_stride_, part, value_stride_);
      else std::memcpy(parts_ + (static_cast<size_t>(chunk) * n_ * shape_.heads + query_of(i)) * part_stride_, part, part_stride_ * sizeof(float));
    }
  }
  for (int i = 0; !split_ && i < count; i++)
    k_.finish(sums + static_cast<size_t>(i) * part_stride_, dim, attended_ + query_of(i) * dim);
}

// hidden += w x, for tiles [begin, end)
void Forward::add_linear(int thread, const PackedLinear& w, const Prepared& x, int begin, int end) {
  float* out = private_[thread].out;
  const int width = std::min(w.view().outputs, end * kTile) - begin * kTile;
  const size_t stride = static_cast<size_t>(end - begin) * kTile;
  for (int r = 0; r < n_; r += kRowBlock) {
    const int rows = std::min(kRowBlock, n_ - r);
    k_.linear(w.view(), block(x, w, r), rows, begin, end, out, stride);
    for (int i = 0; i < rows; i++) k_.accumulate(hidden_row(r + i) + begin * kTile, out + i * stride, width);
  }
}

void Forward::project_out(Member& me, const LayerWeights& layer) {
  auto x = attended(me, kinds_of({&layer.o}));
  const int tiles = layer.o.view().tiles;
  share(me, tiles, piece(tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, layer.o, x.get(), static_cast<int>(begin), static_cast<int>(end));
  });
}

void Forward::gate_and_up(Member& me, const LayerWeights& layer) {
  auto x = normed(me, layer.post_norm, kinds_of({&layer.gate, &layer.up}));
  const int tiles = layer.gate.view().tiles;
  const RowKind kind = kind_of(layer.down);
  share(me, tiles, piece(tiles), [&](int64_t from, int64_t to) {
    const int begin = static_cast<int>(from), end = static_cast<int>(to);
    const size_t stride = static_cast<size_t>(end - begin) * kTile;
    float *out = private_[me.thread].out, *out2 = private_[me.thread].out2;
    for (int r = 0; r < n_; r += kRowBlock) {
      const int rows = std::min(kRowBlock, n_ - r);
      k_.linear(layer.gate.view(), block(x.get(), layer.gate, r), rows, begin, end, out, stride);
      k_.linear(layer.up.view(), block(x.get(), layer.up, r), rows, begin, end, out2, stride);
      for (int i = 0; i < rows; i++) {
        k_.swiglu(out + i * stride, out2 + i * stride, static_cast<int>(stride));
        k_.prepare(kind, out + i * stride, shape_.intermediate, begin * kTile, std::min(shape_.intermediate, end * kTile),
                   prepared_row(activation_, kind, shape_.intermediate, r + i));
      }
    }
  });
}

void Forward::project_down(Member& me, const LayerWeights& layer) {
  const int tiles = layer.down.view().tiles;
  share(me, tiles, piece(tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, layer.down, activation_, static_cast<int>(begin), static_cast<int>(end));
  });
}

// The last hidden state, after the norm unless a drafting head hands it on without, where it was asked for.
void Forward::last_state(Member& me) {
  const size_t taps = batch_.taps.size();
  if (std::find(batch_.taps.begin(), batch_.taps.end(), shape_.layers) == batch_.taps.end()) return;
  const std::vector<float>& norm = d_.weights_->norm;
  const Entry& entry = d_.weights_->entry;
  const bool normed = !norm.empty() && (entry.kind == Entry::Kind::tokens || entry.hands_on_normed);
  share(me, n_, 1, [&](int64_t i, int64_t) {
    const float* state = hidden_row(i);
    if (normed) {
      k_.rms_norm(state, norm.data(), shape_.hidden, shape_.norm_eps, private_[me.thread].norm);
      state = private_[me.thread].norm;
    }
    for (size_t t = 0; t < taps; t++)
      if (batch_.taps[t] == shape_.layers)
        std::memcpy(features_ + (i * taps + t) * shape_.hidden, state, shape_.hidden * sizeof(float));
  });
}

// The last norm and the head, over the rows whose logits are wanted only.
void Forward::head(Member& me) {
  if (wanted_ == 0) return;
  const PackedLinear& head = d_.weights_->head.empty() ? d_.weights_->embed : d_.weights_->head;
  const unsigned kinds = kinds_of({&head});
  const std::vector<float>& norm = d_.weights_->norm;
  auto x = inputs(me, wanted_, [this, kinds, &norm, mine = private_[me.thread].norm](const Prepared& into, int64_t i) {
    const float* state = hidden_row(batch_.logits[i]);
    if (!norm.empty()) {
      k_.rms_norm(state, norm.data(), shape_.hidden, shape_.norm_eps, mine);
      state = mine;
    }
    prepare_all(into, kinds, shape_.hidden, i, state);
  });
  const Linear& view = head.view();
  const size_t stride = static_cast<size_t>(view.tiles) * kTile;
  share(me, view.tiles, piece(view.tiles), [&](int64_t begin, int64_t end) {
    k_.linear(view, block(x.get(), head, 0), wanted_, static_cast<int>(begin), static_cast<int>(end),
              logits_ + begin * kTile, stride);
  });
}

Decoder::Decoder(DecoderShape shape, DecoderWeights weights, std::shared_ptr<Team> team, const Kernels* kernels)
    : shape_(std::move(shape)),
      weights_(std::make_shared<const DecoderWeights>(std::move(weights))),
      team_(std::move(team)),
      kernels_(kernels) {
  const DecoderShape& s = shape_;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("decoder: ") + what);
  };
  for (const int size : {s.layers, s.hidden, s.intermediate, s.heads, s.kv_heads, s.head_dim})
    require(size > 0 && size <= kMostInputs, "a size is out of range");
  require(s.vocab > 0 && s.vocab <= kMostOutputs, "the vocabulary is out of range");
  require(s.heads % s.kv_heads == 0, "heads are not a multiple of key-value heads");
  require(static_cast<int64_t>(s.heads) * s.head_dim <= kMostInputs, "the heads are too large");
  require(s.head_dim % 2 == 0 && s.inv_freq.size() == static_cast<size_t>(s.head_dim / 2), "rotary frequencies do not fit the head size");
  require(weights_->layers.size() == static_cast<size_t>(s.layers), "layers are missing");
  const auto shaped = [&](const PackedLinear& w, int outputs, int inputs) {
    require(!w.empty() && w.view().outputs == outputs && w.view().inputs == inputs, "a weight has another shape than the model says");
  };
  const auto sized = [&](const std::vector<float>& norm, int n) { require(norm.size() == static_cast<size_t>(n), "a norm has another size than the model says"); };
  const auto sized_if_there = [&](const std::vector<float>& norm, int n) {
    if (!norm.empty()) sized(norm, n);
  };
  const Entry& entry = weights_->entry;
  const bool drafts = entry.kind != Entry::Kind::tokens, pairs = entry.kind == Entry::Kind::eagle3;
  require(s.outputs >= 0 && s.outputs <= kMostOutputs, "the head's outputs are out of range");
  require(!drafts || s.hidden <= kMostInputs / 2, "a drafting head is too wide");
  shaped(weights_->embed, s.vocab, s.hidden);
  if (!weights_->head.empty()) shaped(weights_->head, outputs(), s.hidden);
  else require(outputs() == s.vocab, "there is no head of so many outputs");
  if (entry.kind == Entry::Kind::eagle) shaped(entry.fc, s.hidden, 2 * s.hidden);
  sized_if_there(entry.embed_norm, s.hidden);
  sized_if_there(entry.state_norm, s.hidden);
  if (drafts) sized_if_there(weights_->norm, s.hidden);
  else sized(weights_->norm, s.hidden);
  for (size_t l = 0; l < weights_->layers.size(); l++) {
    const LayerWeights& layer = weights_->layers[l];
    const int inputs = pairs && l == 0 ? 2 * s.hidden : s.hidden;
    shaped(layer.q, s.heads * s.head_dim, inputs);
    shaped(layer.k, s.kv_heads * s.head_dim, inputs);
    shaped(layer.v, s.kv_heads * s.head_dim, inputs);
    shaped(layer.o, s.hidden, s.heads * s.head_dim);
    shaped(layer.gate, s.intermediate, s.hidden);
    shaped(layer.up, s.intermediate, s.hidden);
    shaped(layer.down, s.hidden, s.intermediate);
    if (drafts && l == 0) sized_if_there(layer.input_norm, s.hidden);
    else sized(layer.input_norm, s.hidden);
    sized(layer.post_norm, s.hidden);
    if (!layer.q_norm.empty()) sized(layer.q_norm, s.head_dim);
    if (!layer.k_norm.empty()) sized(layer.k_norm, s.head_dim);
  }
}

Decoder::Decoder(const Decoder& whole, int layers)
    : shape_(whole.shape_), weights_(whole.weights_), team_(whole.team_), kernels_(whole.kernels_) {
  if (layers < 1 || layers > shape_.layers) throw std::invalid_argument("decoder: no so many layers");
  shape_.layers = layers;
}

int Decoder::outputs() const { return shape_.outputs > 0 ? shape_.outputs : shape_.vocab; }

int Decoder::logits_stride() const { return (outputs() + kTile - 1) / kTile * kTile; }

Decoder::~Decoder() { team_->wait_idle(); }

void Decoder::forward(Batch batch, float* logits, float* features) {
  const Team::Turn turn = team_->turn();
  const std::vector<Cache::Use> uses = use_all(batch.caches);
  const bool drafts = weights_->entry.kind != Entry::Kind::tokens;
  if (batch.states.size() != (drafts ? batch.tokens.size() * static_cast<size_t>(shape_.hidden) : 0))
    throw std::invalid_argument("forward: states of another size");
  Plan plan = make_plan(shape_, batch);
  const auto forward = std::make_shared<Forward>(*this, batch, std::move(plan), logits, features);
  workspace_.reserve(forward->bytes());
  forward->lay_out(workspace_.as<uint8_t>());
  stage_rows(batch);  // the last thing that may fail
  profile_ = Profile{};
  team_->run(turn, forward);
}

Profile Decoder::profile() {
  const Team::Turn turn = team_->turn();
  return profile_;
}

}  // namespace forerun
