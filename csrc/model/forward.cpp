#include "model/forward.h"

#include <cmath>
#include <cstring>

#include "model/outputs.h"
#include "runtime/fences.h"

namespace forerun {
namespace {

constexpr size_t kAsked = 8192;  // bytes of weights asked for before they are read

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

void ask_from(const PackedLinear& w, int64_t tile) {
  const size_t at = static_cast<size_t>(tile) * w.view().tile_bytes, bytes = std::min(kAsked, w.bytes() - at);
  for (size_t i = 0; i < bytes; i += 64) __builtin_prefetch(w.view().data + at + i, 0, 2);
}

}  // namespace

void Forward::lay_out(uint8_t* base) {
  Workspace space(base, bytes_);
  const size_t n = n_, heads = shape_.heads, half = shape_.head_dim / 2;
  const int widest = std::max({shape_.hidden, shape_.heads * shape_.head_dim, shape_.intermediate});
  hidden_ = space.take<float>(n * shape_.hidden);
  const int pair = d_.weights_->entry.kind == Entry::Kind::tokens ? 0 : 2 * shape_.hidden;
  joined_ = space.take<float>(n * pair);
  cos_ = space.take<float>(n * half);
  sin_ = space.take<float>(n * half);
  queries_ = space.take<float>(n * heads * value_stride_);
  attended_ = space.take<float>(n * heads * shape_.head_dim);
  sums_ = space.take<float>(split_ ? static_cast<size_t>(plan_.runs) * n * heads * sum_stride_ : 0);
  const auto prepared = [&](Prepared& p, int inputs) {
    for (int kind = 0; kind < Prepared::kKinds; kind++)
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
    p.scratch = space.take<float>(k_.attend_scratch(plan_.tail_blocks, value_stride_) + 2 * value_stride_);
    p.sums = space.take<float>(static_cast<size_t>(2) * kMaxQueries * sum_stride_);
    p.queries = space.take<Query>(kMaxQueries);
    p.q = space.take<float>(static_cast<size_t>(shape_.head_dim + 1) * kMaxQueries);
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
    project_out(me, layer, first_row(l));
    gate_and_up(me, layer, first_row(l));
    project_down(me, l);
    lap(me, &Profile::linear);
  }
  last_state(me);
  head(me);
  lap(me, &Profile::head);
}

int Forward::first_asked() const {
  const auto& taps = batch_.taps;
  if (std::find(taps.begin(), taps.end(), shape_.layers) != taps.end()) return 0;
  return wanted_ == 0 ? n_ : *std::min_element(batch_.logits.begin(), batch_.logits.end());
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
  for (int kind = 0; kind < Prepared::kKinds; kind++)
    if (kinds >> kind & 1u) {
      const RowKind k = static_cast<RowKind>(kind);
      k_.prepare(k, x, inputs, 0, inputs, prepared_row(into, k, inputs, i));
      if (k == RowKind::q8) k_.refine(x, inputs, prepared_row(into, k, inputs, i));
    }
}

void Forward::ask_for(const Member& me, const PackedLinear& w) const {
  const int tiles = w.view().tiles;
  ask_from(w, own_begin(me, tiles, piece(tiles)));
}

void Forward::ask_for_heads(const Member& me, const LayerWeights& layer) const {
  const HeadUnit unit = head_unit(layer, own_begin(me, head_units(), 1));
  ask_from(unit.w, unit.tile);
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
auto Forward::normed(Member& me, const std::vector<float>& norm, unsigned kinds, int first) {
  return inputs(me, first, n_, [this, &norm, kinds, mine = private_[me.thread].norm](const Prepared& into, int64_t i) {
    const float* x = hidden_row(i);
    if (!norm.empty()) {
      k_.rms_norm(x, norm.data(), shape_.hidden, shape_.norm_eps, mine);
      x = mine;
    }
    prepare_all(into, kinds, shape_.hidden, i, x);
  });
}

// The attention's output of every row.
auto Forward::attended(Member& me, unsigned kinds, int first) {
  return inputs(me, first, n_, [this, kinds](const Prepared& into, int64_t i) {
    const int width = shape_.heads * shape_.head_dim;
    prepare_all(into, kinds, width, i, attended_ + static_cast<size_t>(i) * width);
  });
}

// Queries, keys and values, whole heads at a time, so that norms, rotation and storing follow at once.
void Forward::project_heads(Member& me, const LayerWeights& layer, int index) {
  const unsigned kinds = kinds_of({&layer.q, &layer.k, &layer.v});
  if (index == 0 && d_.weights_->entry.kind == Entry::Kind::eagle3) project_from(me, layer, index, joined(me, kinds));
  else project_from(me, layer, index, normed(me, layer.input_norm, kinds, 0));
}

template <class Rows>
void Forward::project_from(Member& me, const LayerWeights& layer, int index, Rows x) {
  share(me, head_units(), 1, [&](int64_t u, int64_t) { project_unit(me.thread, layer, index, x.get(), head_unit(layer, u)); });
}

int Forward::head_units() const {
  const auto units = [this](int heads) { return (heads + heads_in_unit_ - 1) / heads_in_unit_; };
  return units(shape_.heads) + 2 * units(shape_.kv_heads);
}

Forward::HeadUnit Forward::head_unit(const LayerWeights& layer, int64_t u) const {
  const PackedLinear* const weights[] = {&layer.q, &layer.k, &layer.v};
  int role = 0, first = static_cast<int>(u) * heads_in_unit_, heads = shape_.heads;
  for (; first >= heads; heads = shape_.kv_heads, role++) first -= (heads + heads_in_unit_ - 1) / heads_in_unit_ * heads_in_unit_;
  return {*weights[role], role, first, std::min(heads_in_unit_, heads - first), first * shape_.head_dim / kTile};
}

void Forward::project_unit(int thread, const LayerWeights& layer, int index, const Prepared& x, const HeadUnit& unit) {
  const int dim = shape_.head_dim, tiles = (unit.count * dim + kTile - 1) / kTile;
  float* out = private_[thread].out;
  for (int r = unit.role == 0 ? first_row(index) : 0; r < n_; r += kRowBlock) {
    const int rows = std::min(kRowBlock, n_ - r);
    k_.linear(unit.w.view(), block(x, unit.w, r), rows, unit.tile, unit.tile + tiles, out, static_cast<size_t>(tiles) * kTile);
    for (int i = 0; i < rows; i++)
      for (int h = 0; h < unit.count; h++)
        finish_head(thread, layer, index, unit.role, r + i, unit.first + h, out + static_cast<size_t>(i) * tiles * kTile + h * dim);
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
  std::memcpy(queries_ + (static_cast<size_t>(row) * shape_.heads + head) * value_stride_, padded, value_stride_ * sizeof(float));
}

// One key-value head after the other; when groups are split, run after run of it and all groups at a run, so that keys and values
// are read as they lie.
void Forward::attention(Member& me, int index) {
  const int64_t groups = static_cast<int64_t>(plan_.groups.size()), runs = split_ ? plan_.runs : 1;
  share(me, shape_.kv_heads * runs * groups, 1, [&](int64_t u, int64_t) {
    const int g = static_cast<int>(u % groups), run = static_cast<int>(u / groups % runs), kv_head = static_cast<int>(u / groups / runs);
    const QueryGroup& group = plan_.groups[g];
    if (row_of(group, group.end - group.begin - 1) < first_row(index)) return;
    if (split_) attend_one(me.thread, index, g, kv_head, run);
    else attend_all(me.thread, index, g, kv_head);
  }, [&] { ask_for(me, d_.weights_->layers[index].o); });
}

void Forward::attend_all(int thread, int index, int g, int kv_head) {
  const QueryGroup& group = plan_.groups[g];
  const int count = group.end - group.begin;
  float *sums = private_[thread].sums, *more = sums + static_cast<size_t>(kMaxQueries) * sum_stride_;
  take_queries(thread, index, group, kv_head);
  sum_run(thread, index, group, kv_head, 0, sums);
  for (int run = 1; run_begin(run) < group.chunks; run++) {
    sum_run(thread, index, group, kv_head, run, more);
    k_.merge(sums, more, count, value_stride_);
  }
  finish_group(group, kv_head, sums);
}

// One run of a group; whoever does the last of them merges all.
void Forward::attend_one(int thread, int index, int g, int kv_head, int run) {
  const QueryGroup& group = plan_.groups[g];
  const int runs = run_of(group.chunks - 1) + 1;
  if (run >= runs) return;
  take_queries(thread, index, group, kv_head);
  sum_run(thread, index, group, kv_head, run, split_sums(group, kv_head, run));
  std::atomic<int>& done = runs_done_[static_cast<size_t>(kv_head) * plan_.groups.size() + g];
  if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < runs) return;
  done.store(0, std::memory_order_relaxed);
  float* sums = split_sums(group, kv_head, 0);
  for (int r = 1; r < runs; r++) k_.merge(sums, split_sums(group, kv_head, r), group.end - group.begin, value_stride_);
  finish_group(group, kv_head, sums);
}

// Puts a group's queries, and what they see, where sum_run wants them.
void Forward::take_queries(int thread, int index, const QueryGroup& group, int kv_head) {
  Private& mine = private_[thread];
  const KvHead kv = plan_.rows[group.first_row].cache->head(index, kv_head);
  for (int i = 0; i < group.end - group.begin; i++) {
    const RowPlan& row = plan_.rows[row_of(group, i)];
    const int length = row.position + 1, first = shape_.window > 0 ? std::max(0, length - shape_.window) : 0;
    mine.queries[i] = {first, row.prefix, plan_.tails.data() + row.tail, length};
    k_.pack_query(kv, queries_ + query_of(group, kv_head, i) * value_stride_, i, mine.q);
  }
}

// sums = those of the thread's queries over a run.
void Forward::sum_run(int thread, int index, const QueryGroup& group, int kv_head, int run, float* sums) {
  Private& mine = private_[thread];
  const int count = group.end - group.begin, end = std::min(run_begin(run + 1), group.chunks);
  const KvHead kv = plan_.rows[group.first_row].cache->head(index, kv_head);
  k_.clear(sums, count, value_stride_);
  for (int chunk = run_begin(run); chunk < end; chunk++)
    k_.attend(kv, mine.q, mine.queries, count, chunk, mine.scratch, plan_.tail_blocks, sums);
}

void Forward::finish_group(const QueryGroup& group, int kv_head, const float* sums) {
  for (int i = 0; i < group.end - group.begin; i++)
    k_.finish(sums + static_cast<size_t>(i) * sum_stride_, shape_.head_dim, attended_ + query_of(group, kv_head, i) * shape_.head_dim);
}

// hidden += w x, for rows from the first and tiles [begin, end)
void Forward::add_linear(int thread, const PackedLinear& w, const Prepared& x, int first, int begin, int end) {
  float* out = private_[thread].out;
  const int width = std::min(w.view().outputs, end * kTile) - begin * kTile;
  const size_t stride = static_cast<size_t>(end - begin) * kTile;
  for (int r = first; r < n_; r += kRowBlock) {
    const int rows = std::min(kRowBlock, n_ - r);
    k_.linear(w.view(), block(x, w, r), rows, begin, end, out, stride);
    for (int i = 0; i < rows; i++) k_.accumulate(hidden_row(r + i) + begin * kTile, out + i * stride, width);
  }
}

void Forward::project_out(Member& me, const LayerWeights& layer, int first) {
  auto x = attended(me, kinds_of({&layer.o}), first);
  const int tiles = layer.o.view().tiles;
  share(me, tiles, piece(tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, layer.o, x.get(), first, static_cast<int>(begin), static_cast<int>(end));
  }, [&] { ask_for(me, layer.gate), ask_for(me, layer.up); });
}

void Forward::gate_and_up(Member& me, const LayerWeights& layer, int first) {
  auto x = normed(me, layer.post_norm, kinds_of({&layer.gate, &layer.up}), first);
  const int tiles = layer.gate.view().tiles;
  const RowKind kind = kind_of(layer.down);
  share(me, tiles, piece(tiles), [&](int64_t from, int64_t to) {
    const int begin = static_cast<int>(from), end = static_cast<int>(to);
    const size_t stride = static_cast<size_t>(end - begin) * kTile;
    float *out = private_[me.thread].out, *out2 = private_[me.thread].out2;
    for (int r = first; r < n_; r += kRowBlock) {
      const int rows = std::min(kRowBlock, n_ - r);
      k_.linear(layer.gate.view(), block(x.get(), layer.gate, r), rows, begin, end, out, stride);
      k_.linear(layer.up.view(), block(x.get(), layer.up, r), rows, begin, end, out2, stride);
      for (int i = 0; i < rows; i++) {
        k_.swiglu(out + i * stride, out2 + i * stride, static_cast<int>(stride));
        k_.prepare(kind, out + i * stride, shape_.intermediate, begin * kTile, std::min(shape_.intermediate, end * kTile),
                   prepared_row(activation_, kind, shape_.intermediate, r + i));
      }
    }
  }, [&] { ask_for(me, layer.down); });
}

void Forward::project_down(Member& me, int index) {
  const PackedLinear& down = d_.weights_->layers[index].down;
  const int tiles = down.view().tiles;
  share(me, tiles, piece(tiles), [&](int64_t begin, int64_t end) {
    add_linear(me.thread, down, activation_, first_row(index), static_cast<int>(begin), static_cast<int>(end));
  }, [&] {
    if (index + 1 < shape_.layers) ask_for_heads(me, d_.weights_->layers[index + 1]);
    else ask_for(me, head_weights());
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

// The last norm and the head with what follows it, over the rows whose logits are wanted only.
void Forward::head(Member& me) {
  if (wanted_ == 0) return;
  const PackedLinear& head = head_weights();
  const unsigned kinds = kinds_of({&head});
  const std::vector<float>& norm = d_.weights_->norm;
  auto x = inputs(me, 0, wanted_, [this, kinds, &norm, mine = private_[me.thread].norm](const Prepared& into, int64_t i) {
    const float* state = hidden_row(batch_.logits[i]);
    if (!norm.empty()) {
      k_.rms_norm(state, norm.data(), shape_.hidden, shape_.norm_eps, mine);
      state = mine;
    }
    prepare_all(into, kinds, shape_.hidden, i, state);
  });
  const Linear& view = head.view();
  const int tiles = view.tiles + batch_.more.tiles;
  const size_t stride = static_cast<size_t>(tiles) * kTile;
  share(me, tiles, piece(tiles), [&](int64_t begin, int64_t end) {
    linear_of_both(k_, view, batch_.more, block(x.get(), head, 0), wanted_, static_cast<int>(begin), static_cast<int>(end),
                   logits_ + begin * kTile, stride);
  });
}

}  // namespace forerun
