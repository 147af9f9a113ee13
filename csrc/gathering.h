// What the Python bindings share: waiting without the lock on Python, and weights while they are being gathered.
#pragma once
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <unistd.h>

#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "arrays.h"
#include "kernels/kernels.h"
#include "model/decoder.h"
#include "runtime/threads.h"
#include "weights/packed.h"

namespace forerun {

using Bytes = nanobind::ndarray<const uint8_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;

inline constexpr const char* kFormatNames[] = {"f32", "f16", "bf16", "q8", "q4"};

inline std::string format_name(Format format) { return kFormatNames[static_cast<int>(format)]; }

inline Format format_named(const std::string& name, SourceKind kind) {
  if (name == "auto") return automatic_format(kind);
  for (int i = 0; i < 5; i++)
    if (name == kFormatNames[i]) return static_cast<Format>(i);
  throw std::invalid_argument("no format '" + name + "'");
}

inline const Kernels* kernels_named(const std::string& name) {
  const Kernels* kernels = find_kernels(name.c_str());
  if (kernels == nullptr) throw std::invalid_argument("no kernels '" + name + "' on this machine");
  return kernels;
}

// Lets other Python threads run. To a thread that wants to go on with Python when the interpreter has begun to shut down,
// Python (before 3.14) does what pthread_exit does: it unwinds the stack, and C++ that is in the way ends the process with
// an error. So such a thread stops here, for the little while until the process ends.
class Unlocked {
 public:
  Unlocked() : state_(PyEval_SaveThread()) {}
  ~Unlocked() {
    try {
      PyEval_RestoreThread(state_);
    } catch (...) {
      for (;;) pause();
    }
  }
  Unlocked(const Unlocked&) = delete;
  Unlocked& operator=(const Unlocked&) = delete;

 private:
  PyThreadState* state_;
};

// Fills a layer's tiles by the team: fill(tile_begin, tile_end).
template <class Fill>
void fill_by(Team& team, const PackedLinear& packed, const Fill& fill) {
  std::mutex mutex;
  std::exception_ptr failure;
  {
    const Unlocked unlocked;
    team.for_each(packed.view().tiles, 2, [&](int64_t begin, int64_t end) {
      try {
        fill(static_cast<int>(begin), static_cast<int>(end));
      } catch (...) {  // a team's body must not throw
        const std::lock_guard<std::mutex> lock(mutex);
        failure = std::current_exception();
      }
    });
  }
  if (failure) std::rethrow_exception(failure);
}

// A tensor as a file has it, `kind` its type there, packed by the team to be executed in `format` ("auto": as it is).
inline PackedLinear pack_tensor(Team& team, const std::shared_ptr<Arena>& arena, const std::string& kind, const Bytes& data, int outputs, int inputs,
                                const std::string& format, const std::optional<Vector<int32_t>>& row_order,
                                const std::optional<Vector<float>>& bias) {
  const Source source{source_kind(kind), data.data(), data.size()};
  if (outputs < 1 || outputs > kMostOutputs || inputs < 1 || inputs > kMostInputs) throw std::invalid_argument("weights: a shape out of range");
  if (source.raw_bytes / source_row_bytes(source.kind, inputs) < static_cast<size_t>(outputs))
    throw std::invalid_argument("weights: a tensor is shorter than its shape says");
  const std::vector<int32_t> order = row_order ? copy(*row_order) : std::vector<int32_t>();
  const std::vector<float> offsets = bias ? copy(*bias) : std::vector<float>();
  if (row_order && order.size() != static_cast<size_t>(outputs)) throw std::invalid_argument("weights: row order of another length");
  if (bias && offsets.size() != static_cast<size_t>(outputs)) throw std::invalid_argument("weights: bias of another length");
  for (const int32_t row : order)
    if (row < 0 || row >= outputs) throw std::invalid_argument("weights: row order out of range");
  PackedLinear packed(arena, source.kind, format_named(format, source.kind), outputs, inputs, bias ? offsets.data() : nullptr);
  fill_by(team, packed, [&](int begin, int end) { packed.pack_tiles(source, row_order ? order.data() : nullptr, begin, end); });
  return packed;
}

// Some outputs of a packed layer as one of its own, from the weights that are executed. format: not "auto".
inline PackedLinear take_rows(Team& team, const PackedLinear& from, const std::vector<int32_t>& rows, const std::string& format) {
  const Linear& view = from.view();
  if (view.bias != nullptr) throw std::invalid_argument("weights: rows of a layer with a bias");
  if (rows.empty() || rows.size() > static_cast<size_t>(kMostOutputs)) throw std::invalid_argument("weights: a number of rows out of range");
  for (const int32_t row : rows)
    if (row < 0 || row >= view.outputs) throw std::invalid_argument("weights: a row out of range");
  PackedLinear packed(std::make_shared<Arena>(), SourceKind::F32, format_named(format, SourceKind::F32), static_cast<int>(rows.size()), view.inputs);
  fill_by(team, packed, [&](int begin, int end) { packed.take_tiles(from, rows.data(), begin, end); });
  return packed;
}

// The weights of a decoder while they are being gathered.
class Weights {
 public:
  Weights(int layers, std::shared_ptr<Team> team) : team_(std::move(team)) {
    if (layers < 1 || layers > 100000) throw std::invalid_argument("weights: layers out of range");
    weights_.layers.resize(static_cast<size_t>(layers));
  }

  // Arguments as for pack_tensor. Returns the format it is executed in and its bytes.
  std::pair<std::string, size_t> set_linear(int layer, const std::string& name, const std::string& kind, const Bytes& data, int outputs, int inputs,
                                            const std::string& format, const std::optional<Vector<int32_t>>& row_order,
                                            const std::optional<Vector<float>>& bias) {
    linear(layer, name);  // there is one of this name
    PackedLinear packed = pack_tensor(*team_, arena_, kind, data, outputs, inputs, format, row_order, bias);
    PackedLinear& into = linear(layer, name);
    into = std::move(packed);
    return {format_name(into.view().format), into.bytes()};
  }

  // Another model's embedding or head.
  void share(const std::string& name, const PackedLinear& packed) { linear(-1, name) = packed; }

  // The weights become a drafting head's: "eagle" or "eagle3".
  void set_entry(const std::string& kind, bool residual_is_normed, bool hands_on_normed) {
    Entry& entry = weights_.entry;
    if (kind != "eagle" && kind != "eagle3") throw std::invalid_argument("weights: no entry '" + kind + "'");
    entry.kind = kind == "eagle" ? Entry::Kind::eagle : Entry::Kind::eagle3;
    entry.residual_is_normed = residual_is_normed;
    entry.hands_on_normed = hands_on_normed;
  }

  void set_norm(int layer, const std::string& name, const Vector<float>& values) {
    if (layer < 0) {
      if (name == "norm") weights_.norm = copy(values);
      else if (name == "embed_norm") weights_.entry.embed_norm = copy(values);
      else if (name == "state_norm") weights_.entry.state_norm = copy(values);
      else throw std::invalid_argument("weights: no norm '" + name + "'");
      return;
    }
    LayerWeights& l = at(layer);
    if (name == "input_layernorm") l.input_norm = copy(values);
    else if (name == "post_attention_layernorm") l.post_norm = copy(values);
    else if (name == "q_norm") l.q_norm = copy(values);
    else if (name == "k_norm") l.k_norm = copy(values);
    else throw std::invalid_argument("weights: no norm '" + name + "'");
  }

  DecoderWeights take() { return std::move(weights_); }

 private:
  LayerWeights& at(int layer) {
    if (layer < 0 || layer >= static_cast<int>(weights_.layers.size())) throw std::invalid_argument("weights: no such layer");
    return weights_.layers[static_cast<size_t>(layer)];
  }
  PackedLinear& linear(int layer, const std::string& name) {
    if (layer < 0) {
      if (name == "embed_tokens") return weights_.embed;
      if (name == "lm_head") return weights_.head;
      if (name == "fc") return weights_.entry.fc;
      throw std::invalid_argument("weights: no linear layer '" + name + "'");
    }
    LayerWeights& l = at(layer);
    if (name == "q_proj") return l.q;
    if (name == "k_proj") return l.k;
    if (name == "v_proj") return l.v;
    if (name == "o_proj") return l.o;
    if (name == "gate_proj") return l.gate;
    if (name == "up_proj") return l.up;
    if (name == "down_proj") return l.down;
    throw std::invalid_argument("weights: no linear layer '" + name + "'");
  }

  std::shared_ptr<Team> team_;
  std::shared_ptr<Arena> arena_ = std::make_shared<Arena>();
  DecoderWeights weights_;
};

}  // namespace forerun
