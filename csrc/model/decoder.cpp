#include "model/decoder.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "model/plan.h"

namespace forerun {
namespace {

constexpr int kPrivateRows = 16;  // up to here every thread prepares all rows for itself: cheaper than a barrier
constexpr int kRowBlock = 64;     // rows whose outputs a thread holds at a time
constexpr int kPieceTiles = 8;    // tiles handed out at a time at most, an even number
constexpr int kKinds = 3;         // RowKind values

size_t round64(size_t bytes) { return (bytes + 63) / 64 * 64; }

// Carves arrays out of one buffer: the first pass counts, the second one points.
class Workspace {
 public:
  explicit Workspace(uint8_t* base) : base_(base) {}
  template <class T>
  T* take(size_t count) {
    T* p = reinterpret_cast<T*>(base_ + used_);
    used_ += round64(count * sizeof(T));
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

}  // namespace

// One forward, run by all members of the team together. Each stage hands out its work through Team::next and ends in a
// barrier; nothing a thread computes depends on which thread it is.
class Forward {
 public:
  Forward(Decoder& decoder, const Batch& batch, Plan plan, float* logits, float* features)
      : d_(decoder), shape_(decoder.shape_), team_(*decoder.team_), k_(*decoder.kernels_), batch_(batch), plan_(std::move(plan)),
        logits_(logits), features_(features), n_(batch.rows), wanted_(static_cast<int>(batch.logits.size())) {
    per_kv_ = shape_.heads / shape_.kv_heads;
    value_stride_ = (shape_.head_dim + 15) / 16 * 16;
    part_stride_ = kPartHeader + value_stride_;
    split_ = static_cast<int>(plan_.groups.size()) * shape_.kv_heads < 4 * team_.size() && plan_.chunks > 1;
    lay_out(nullptr);
  }

  size_t bytes() const { return bytes_; }
  void lay_out(uint8_t* base);
  void run(int thread);

 private:
  bool private_rows(int rows) const { return rows <= kPrivateRows || team_.size() == 1; }
  int piece(int tiles) const { return std::clamp(tiles / (4 * team_.size()) / 2 * 2, 2, kPieceTiles); }
  RowKind kind_of(const PackedLinear& w) const { return k_.row_kind(w.view().format); }
  unsigned kinds_of(std::initializer_list<const PackedLinear*> weights) const;
  float* hidden_row(int i) const { return hidden_ + static_cast<size_t>(i) * shape_.hidden; }
  uint8_t* prepared_row(const Prepared& p, RowKind kind, int inputs, int i) const {
    return p.rows[static_cast<int>(kind)] + static_cast<size_t>(i) * k_.row_bytes(kind, inputs);
  }
  void prepare_all(const Prepared& into, unsigned kinds, int inputs, int i, const float* x) const;
  const void* block(const Prepared& p, const PackedLinear& w, int first) const {
    return prepared_row(p, kind_of(w), w.view().inputs, first);
  }

  void embed();
  Prepared normed(int thread, const float* norm, unsigned kinds);
  void project_heads(int thread, const LayerWeights& layer, int index, const Prepared& x);
  void project_unit(int thread, const LayerWeights& layer, int index, const Prepared& x, int role, int unit);
  void finish_head(int thread, const LayerWeights& layer, int index, int role, int row, int head, const float* out);
  void attention(int thread, int index);
  void attend_group(int thread, int index, const QueryGroup& group, int kv_head, int first_chunk, int last_chunk);
  Prepared attended(int thread, unsigned kinds);
  void add_linear(int thread, const PackedLinear& w, const Prepared& x);
  void gate_and_up(int thread, const LayerWeights& layer, const Prepared& x);
  void tap(int state);
  void last(int thread);
  void barrier_to(int thread, double Profile::* part);

  Decoder& d_;
  const DecoderShape& shape_;
  Team& team_;
  const Kernels& k_;
  const Batch& batch_;
  const Plan plan_;
  float* logits_;
  float* features_;
  const int n_, wanted_;
  int per_kv_, value_stride_, part_stride_;
  bool split_;  // chunks of a group go to different threads
  size_t bytes_ = 0;

  float *hidden_, *cos_, *sin_, *queries_, *attended_, *parts_;
  Prepared shared_, activation_;
  struct Private {
    Prepared rows;
    float *norm, *out, *out2, *scratch, *parts;
    Query* queries;
  };
  std::vector<Private> private_;
  Clock::time_point mark_;
};

void Forward::lay_out(uint8_t* base) {
  Workspace space(base);
  const size_t n = n_, heads = shape_.heads, half = shape_.head_dim / 2;
  const int widest = std::max({shape_.hidden, shape_.heads * shape_.head_dim, shape_.intermediate});
  hidden_ = space.take<float>(n * shape_.hidden);
  cos_ = space.take<float>(n * half);
  sin_ = space.take<float>(n * half);
  queries_ = space.take<float>(n * heads * shape_.head_dim);
  attended_ = space.take<float>(n * heads * shape_.head_dim);
  parts_ = space.take<float>(split_ ? static_cast<size_t>(plan_.chunks) * n * heads * part_stride_ : 0);
  const auto prepared = [&](Prepared& p, size_t rows, int inputs) {
    for (int kind = 0; kind < kKinds; kind++)
      p.rows[kind] = space.take<uint8_t>(rows * k_.row_bytes(static_cast<RowKind>(kind), inputs));
  };
  const int rows_in = std::max(shape_.hidden, shape_.heads * shape_.head_dim);
  const bool alone = private_rows(n_);
  if (!alone) prepared(shared_, n, rows_in);
  prepared(activation_, n, shape_.intermediate);
  private_.resize(team_.size());
  const size_t block = std::min<size_t>(n, kRowBlock);
  const size_t unit_width = std::max(kPieceTiles * kTile, std::lcm(16, shape_.head_dim));
  for (Private& p : private_) {
    if (alone) prepared(p.rows, n, rows_in);
    p.norm = space.take<float>(widest + 16);
    p.out = space.take<float>(block * unit_width);
    p.out2 = space.take<float>(block * unit_width);
    p.scratch = space.take<float>(k_.attend_scratch(plan_.tail_blocks) + 2 * value_stride_);
    p.parts = space.take<float>(static_cast<size_t>(2) * kMaxQueries * part_stride_);
    p.queries = space.take<Query>(kMaxQueries);
  }
  bytes_ = space.used();
}

void Forward::run(int thread) {
  if (thread == 0) mark_ = Clock::now();
  embed();
  barrier_to(thread, &Profile::other);
  for (int l = 0; l < shape_.layers; l++) {
    const LayerWeights& layer = d_.weights_.layers[l];
    if (thread == 0) tap(l);
    project_heads(thread, layer, l, normed(thread, layer.input_norm.data(), kinds_of({&layer.q, &layer.k, &layer.v})));
    barrier_to(thread, &Profile::linear);
    attention(thread, l);
    barrier_to(thread, &Profile::attention);
    add_linear(thread, layer.o, attended(thread, kinds_of({&layer.o})));
    barrier_to(thread, &Profile::linear);
    gate_and_up(thread, layer, normed(thread, layer.post_norm.data(), kinds_of({&layer.gate, &layer.up})));
    barrier_to(thread, &Profile::linear);
    add_linear(thread, layer.down, activation_);
    barrier_to(thread, &Profile::linear);
  }
  last(thread);
}

void Forward::barrier_to(int thread, double Profile::* part) {
  team_.barrier();
  if (thread != 0) return;
  const auto now = Clock::now();
  d_.profile_.*part += std::chrono::duration<double>(now - mark_).count();
  mark_ = now;
}

unsigned Forward::kinds_of(std::initializer_list<const PackedLinear*> weights) const {
  unsigned kinds = 0;
  for (const PackedLinear* w : weights) kinds |= 1u << static_cast<int>(kind_of(*w));
  return kinds;
}

void Forward::prepare_all(const Prepared& into, unsigned kinds, int inputs, int i, const float* x) const {
  for (int kind = 0; kind < kKinds; kind++)
    if (kinds >> kind & 1u) {
      const RowKind k = static_cast<RowKind>(kind);
      k_.prepare(k, x, inputs, 0, inputs, prepared_row(into, k, inputs, i));
    }
}

// Embeddings, and the rotary angles of each row, in float32 as transformers computes them.
void Forward::embed() {
  const int half = shape_.head_dim / 2;
  for (int64_t i; (i = team_.next(n_, 1)) >= 0;) {
    d_.weights_.embed.unpack_row(batch_.tokens[i], hidden_row(static_cast<int>(i)));
    const float position = static_cast<float>(plan_.rows[i].position);
    for (int j = 0; j < half; j++) {
      const double angle = position * shape_.inv_freq[j];
      cos_[i * half + j] = static_cast<float>(std::cos(angle)) * shape_.rope_scale;
      sin_[i * half + j] = static_cast<float>(std::sin(angle)) * shape_.rope_scale;
    }
  }
}

// Every row of the hidden state, normed and prepared: by each thread for itself where rows are few, else shared.
Prepared Forward::normed(int thread, const float* norm, unsigned kinds) {
  Private& mine = private_[thread];
  const bool alone = private_rows(n_);
  const Prepared& into = alone ? mine.rows : shared_;
  const auto one = [&](int i) {
    k_.rms_norm(hidden_row(i), norm, shape_.hidden, shape_.norm_eps, mine.norm);
    prepare_all(into, kinds, shape_.hidden, i, mine.norm);
  };
  if (alone) {
    for (int i = 0; i < n_; i++) one(i);
  } else {
    for (int64_t i; (i = team_.next(n_, 1)) >= 0;) one(static_cast<int>(i));
    team_.barrier();
  }
  return into;
}

// Queries, keys and values, whole heads at a time, so that norms, rotation and storing follow at once.
void Forward::project_heads(int thread, const LayerWeights& layer, int index, const Prepared& x) {
  const int heads_in_unit = 16 / std::gcd(16, shape_.head_dim);  // so that a unit begins on a tile
  const int q_units = (shape_.heads + heads_in_unit - 1) / heads_in_unit;
  const int kv_units = (shape_.kv_heads + heads_in_unit - 1) / heads_in_unit;
  for (int64_t u; (u = team_.next(q_units + 2 * kv_units, 1)) >= 0;) {
    const int unit = static_cast<int>(u);
    if (unit < q_units) project_unit(thread, layer, index, x, 0, unit);
    else if (unit < q_units + kv_units) project_unit(thread, layer, index, x, 1, unit - q_units);
    else project_unit(thread, layer, index, x, 2, unit - q_units - kv_units);
  }
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

void Forward::attention(int thread, int index) {
  const int groups = static_cast<int>(plan_.groups.size()), units = groups * shape_.kv_heads;
  const int pieces = split_ ? plan_.chunks : 1;
  for (int64_t u; (u = team_.next(static_cast<int64_t>(units) * pieces, 1)) >= 0;) {
    const QueryGroup& group = plan_.groups[u % groups];
    const int kv_head = static_cast<int>(u / groups % shape_.kv_heads), piece = static_cast<int>(u / units);
    if (split_) attend_group(thread, index, group, kv_head, piece, piece);
    else attend_group(thread, index, group, kv_head, 0, group.chunks - 1);
  }
}

// Chunks first_chunk..last_chunk of a group: parts kept apart when split, else merged in order and finished.
void Forward::attend_group(int thread, int index, const QueryGroup& group, int kv_head, int first_chunk, int last_chunk) {
  Private& mine = private_[thread];
  const int count = group.end - group.begin, dim = shape_.head_dim;
  const auto row_of = [&](int i) { return group.first_row + (group.begin + i) / per_kv_; };
  const auto head_of = [&](int i) { return kv_head * per_kv_ + (group.begin + i) % per_kv_; };
  for (int i = 0; i < count; i++) {
    const RowPlan& row = plan_.rows[row_of(i)];
    const int length = row.position + 1, first = shape_.window > 0 ? std::max(0, length - shape_.window) : 0;
    mine.queries[i] = {queries_ + (static_cast<size_t>(row_of(i)) * shape_.heads + head_of(i)) * dim, first, row.prefix,
                       plan_.tails.data() + row.tail, length};
  }
  const KvHead kv = plan_.rows[group.first_row].cache->head(index, kv_head);
  float* sums = mine.parts + static_cast<size_t>(kMaxQueries) * part_stride_;
  for (int i = 0; i < count; i++) sums[i * part_stride_] = -INFINITY;
  for (int chunk = first_chunk; chunk <= last_chunk; chunk++) {
    k_.attend(kv, mine.queries, count, chunk, mine.scratch, plan_.tail_blocks, mine.parts, part_stride_);
    for (int i = 0; i < count; i++) {
      const float* part = mine.parts + static_cast<size_t>(i) * part_stride_;
      const size_t query = static_cast<size_t>(row_of(i)) * shape_.heads + head_of(i);
      if (split_) std::memcpy(parts_ + (static_cast<size_t>(chunk) * n_ * shape_.heads + query) * part_stride_, part, part_stride_ * sizeof(float));
      else k_.merge(sums + static_cast<size_t>(i) * part_stride_, part, value_stride_);
    }
  }
  if (split_) return;
  for (int i = 0; i < count; i++)
    k_.finish(sums + static_cast<size_t>(i) * part_stride_, dim, attended_ + (static_cast<size_t>(row_of(i)) * shape_.heads + head_of(i)) * dim);
}

// The attention's output of every row, merged if its chunks were apart, prepared for the output projection.
Prepared Forward::attended(int thread, unsigned kinds) {
  Private& mine = private_[thread];
  const bool alone = private_rows(n_);
  const Prepared& into = alone ? mine.rows : shared_;
  const int width = shape_.heads * shape_.head_dim;
  const auto one = [&](int i) {
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
  };
  if (alone) {
    for (int i = 0; i < n_; i++) one(i);
  } else {
    for (int64_t i; (i = team_.next(n_, 1)) >= 0;) one(static_cast<int>(i));
    team_.barrier();
  }
  return into;
}

// hidden += w x
void Forward::add_linear(int thread, const PackedLinear& w, const Prepared& x) {
  const Linear& view = w.view();
  const int step = piece(view.tiles);
  float* out = private_[thread].out;
  for (int64_t t; (t = team_.next(view.tiles, step)) >= 0;) {
    const int begin = static_cast<int>(t), end = std::min(view.tiles, begin + step);
    const int width = std::min(view.outputs, end * kTile) - begin * kTile;
    for (int r = 0; r < n_; r += kRowBlock) {
      const int rows = std::min(kRowBlock, n_ - r);
      const size_t stride = static_cast<size_t>(end - begin) * kTile;
      k_.linear(view, block(x, w, r), rows, begin, end, out, stride);
      for (int i = 0; i < rows; i++) k_.accumulate(hidden_row(r + i) + begin * kTile, out + i * stride, width);
    }
  }
}

void Forward::gate_and_up(int thread, const LayerWeights& layer, const Prepared& x) {
  const Linear& gate = layer.gate.view();
  const int step = piece(gate.tiles);
  const RowKind kind = kind_of(layer.down);
  float *out = private_[thread].out, *out2 = private_[thread].out2;
  for (int64_t t; (t = team_.next(gate.tiles, step)) >= 0;) {
    const int begin = static_cast<int>(t), end = std::min(gate.tiles, begin + step);
    const size_t stride = static_cast<size_t>(end - begin) * kTile;
    for (int r = 0; r < n_; r += kRowBlock) {
      const int rows = std::min(kRowBlock, n_ - r);
      k_.linear(gate, block(x, layer.gate, r), rows, begin, end, out, stride);
      k_.linear(layer.up.view(), block(x, layer.up, r), rows, begin, end, out2, stride);
      for (int i = 0; i < rows; i++) {
        k_.swiglu(out + i * stride, out2 + i * stride, static_cast<int>(stride));
        k_.prepare(kind, out + i * stride, shape_.intermediate, begin * kTile, std::min(shape_.intermediate, end * kTile),
                   prepared_row(activation_, kind, shape_.intermediate, r + i));
      }
    }
  }
}

// Copies hidden state `state` of all rows where it was asked for.
void Forward::tap(int state) {
  const size_t taps = batch_.taps.size();
  for (size_t t = 0; t < taps; t++)
    if (batch_.taps[t] == state)
      for (int i = 0; i < n_; i++)
        std::memcpy(features_ + (static_cast<size_t>(i) * taps + t) * shape_.hidden, hidden_row(i), shape_.hidden * sizeof(float));
}

// The last norm and the head, over the rows whose logits are wanted only.
void Forward::last(int thread) {
  Private& mine = private_[thread];
  const float* norm = d_.weights_.norm.data();
  const PackedLinear& head = d_.weights_.head.empty() ? d_.weights_.embed : d_.weights_.head;
  const size_t taps = batch_.taps.size();
  const bool tapped = std::find(batch_.taps.begin(), batch_.taps.end(), shape_.layers) != batch_.taps.end();
  if (tapped) {
    for (int64_t i; (i = team_.next(n_, 1)) >= 0;) {
      k_.rms_norm(hidden_row(static_cast<int>(i)), norm, shape_.hidden, shape_.norm_eps, mine.norm);
      for (size_t t = 0; t < taps; t++)
        if (batch_.taps[t] == shape_.layers)
          std::memcpy(features_ + (i * taps + t) * shape_.hidden, mine.norm, shape_.hidden * sizeof(float));
    }
    team_.barrier();
  }
  if (wanted_ == 0) return;
  const unsigned kinds = kinds_of({&head});
  const bool alone = private_rows(n_);
  const Prepared& into = alone ? mine.rows : shared_;
  const auto one = [&](int i) {
    k_.rms_norm(hidden_row(batch_.logits[i]), norm, shape_.hidden, shape_.norm_eps, mine.norm);
    prepare_all(into, kinds, shape_.hidden, i, mine.norm);
  };
  if (alone) {
    for (int i = 0; i < wanted_; i++) one(i);
  } else {
    for (int64_t i; (i = team_.next(wanted_, 1)) >= 0;) one(static_cast<int>(i));
    team_.barrier();
  }
  const Linear& view = head.view();
  const int step = piece(view.tiles), stride = view.tiles * kTile;
  for (int64_t t; (t = team_.next(view.tiles, step)) >= 0;) {
    const int begin = static_cast<int>(t), end = std::min(view.tiles, begin + step);
    k_.linear(view, block(into, head, 0), wanted_, begin, end, logits_ + begin * kTile, stride);
  }
  barrier_to(thread, &Profile::head);
}

Decoder::Decoder(DecoderShape shape, DecoderWeights weights, std::shared_ptr<Team> team, const Kernels* kernels)
    : shape_(std::move(shape)), weights_(std::move(weights)), team_(std::move(team)), kernels_(kernels) {
  const DecoderShape& s = shape_;
  const auto require = [](bool holds, const char* what) {
    if (!holds) throw std::invalid_argument(std::string("decoder: ") + what);
  };
  require(s.layers > 0 && s.hidden > 0 && s.intermediate > 0 && s.heads > 0 && s.kv_heads > 0 && s.vocab > 0, "a size is not positive");
  require(s.heads % s.kv_heads == 0, "heads are not a multiple of key-value heads");
  require(s.head_dim > 0 && s.head_dim % 2 == 0 && s.inv_freq.size() == static_cast<size_t>(s.head_dim / 2), "rotary frequencies do not fit the head size");
  require(weights_.layers.size() == static_cast<size_t>(s.layers), "layers are missing");
  const auto shaped = [&](const PackedLinear& w, int outputs, int inputs) {
    require(!w.empty() && w.view().outputs == outputs && w.view().inputs == inputs, "a weight has another shape than the model says");
  };
  const auto sized = [&](const std::vector<float>& norm, int n) { require(norm.size() == static_cast<size_t>(n), "a norm has another size than the model says"); };
  shaped(weights_.embed, s.vocab, s.hidden);
  if (!weights_.head.empty()) shaped(weights_.head, s.vocab, s.hidden);
  sized(weights_.norm, s.hidden);
  for (const LayerWeights& layer : weights_.layers) {
    shaped(layer.q, s.heads * s.head_dim, s.hidden);
    shaped(layer.k, s.kv_heads * s.head_dim, s.hidden);
    shaped(layer.v, s.kv_heads * s.head_dim, s.hidden);
    shaped(layer.o, s.hidden, s.heads * s.head_dim);
    shaped(layer.gate, s.intermediate, s.hidden);
    shaped(layer.up, s.intermediate, s.hidden);
    shaped(layer.down, s.hidden, s.intermediate);
    sized(layer.input_norm, s.hidden);
    sized(layer.post_norm, s.hidden);
    if (!layer.q_norm.empty()) sized(layer.q_norm, s.head_dim);
    if (!layer.k_norm.empty()) sized(layer.k_norm, s.head_dim);
  }
}

int Decoder::logits_stride() const { return (shape_.vocab + kTile - 1) / kTile * kTile; }

void Decoder::forward(const Batch& batch, float* logits, float* features) {
  Forward forward(*this, batch, make_plan(shape_, batch), logits, features);
  workspace_.reserve(forward.bytes());
  forward.lay_out(workspace_.as<uint8_t>());
  profile_ = Profile{};
  team_->run([&](int thread) { forward.run(thread); });
}

}  // namespace forerun
