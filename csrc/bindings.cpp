// The Python module forerun._core: thin faces over the C++ classes. Shapes and ranges are checked here or in the classes;
// a mistake raises ValueError, lack of memory MemoryError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "model/cache.h"
#include "model/decoder.h"
#include "runtime/bandwidth.h"
#include "runtime/threads.h"
#include "weights/packed.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

void bind_sampling(nb::module_& m);  // bindings_sampling.cpp
void bind_drafting(nb::module_& m);  // bindings_drafting.cpp

namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Matrix = nb::ndarray<nb::numpy, float, nb::ndim<2>>;
using Cube = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

std::vector<int32_t> ints(const Ints& a) { return {a.data(), a.data() + a.size()}; }
std::vector<float> floats(const Floats& a) { return {a.data(), a.data() + a.size()}; }

KvType kv_type(const std::string& name) {
  if (name == "f32") return KvType::f32;
  if (name == "f16") return KvType::f16;
  if (name == "q8") return KvType::q8;
  throw std::invalid_argument("no cache type '" + name + "'");
}

constexpr const char* kFormatNames[] = {"f32", "f16", "bf16", "q8", "q4"};

std::string format_name(Format format) { return kFormatNames[static_cast<int>(format)]; }

Format format_named(const std::string& name, SourceKind kind) {
  if (name == "auto") return automatic_format(kind);
  for (int i = 0; i < 5; i++)
    if (name == kFormatNames[i]) return static_cast<Format>(i);
  throw std::invalid_argument("no format '" + name + "'");
}

std::vector<std::string> kernel_names() {
  const Kernels* tables[8];
  const int n = available_kernels(tables, 8);
  std::vector<std::string> names;
  for (int i = 0; i < n; i++) names.emplace_back(tables[i]->name);
  return names;
}

const Kernels* kernels_named(const std::string& name) {
  const Kernels* kernels = find_kernels(name.c_str());
  if (kernels == nullptr) throw std::invalid_argument("no kernels '" + name + "' on this machine");
  return kernels;
}

// Result arrays live in buffers that return here when Python lets go of them: fresh pages would cost more than the head.
class Pool : public std::enable_shared_from_this<Pool> {
 public:
  // An owner for the capsule, with at least `count` floats.
  struct Loan {
    std::shared_ptr<Pool> pool;
    Buffer buffer;
    ~Loan() {
      std::lock_guard<std::mutex> lock(pool->mutex_);
      if (pool->free_.size() < 4) pool->free_.push_back(std::move(buffer));
    }
  };
  Loan* take(size_t count) {
    auto* loan = new Loan{shared_from_this(), Buffer()};
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < free_.size(); i++)
        if (free_[i].size() >= count * sizeof(float)) {
          loan->buffer = std::move(free_[i]);
          free_.erase(free_.begin() + static_cast<long>(i));
          return loan;
        }
      if (free_.size() >= 4) free_.erase(free_.begin());
    }
    loan->buffer = Buffer(count * sizeof(float), true);
    return loan;
  }

 private:
  std::mutex mutex_;
  std::vector<Buffer> free_;
};

nb::capsule capsule(Pool::Loan* loan) {
  return nb::capsule(loan, [](void* p) noexcept { delete static_cast<Pool::Loan*>(p); });
}

// The weights of a decoder while they are being gathered.
class Weights {
 public:
  Weights(int layers, std::shared_ptr<Team> team) : team_(std::move(team)) {
    if (layers < 1 || layers > 100000) throw std::invalid_argument("weights: layers out of range");
    weights_.layers.resize(static_cast<size_t>(layers));
  }

  // data: the tensor as the file has it, `kind` its type there. format: how it is executed ("auto": as it is).
  // Returns the format it is executed in and its bytes.
  std::pair<std::string, size_t> set_linear(int layer, const std::string& name, const std::string& kind, const Bytes& data, int outputs, int inputs,
                  const std::string& format, const std::optional<Ints>& row_order, const std::optional<Floats>& bias) {
    PackedLinear& into = linear(layer, name);
    const Source source{source_kind(kind), data.data(), data.size()};
    if (outputs < 1 || inputs < 1 || source.raw_bytes / source_row_bytes(source.kind, inputs) < static_cast<size_t>(outputs))
      throw std::invalid_argument("weights: a tensor is shorter than its shape says");
    if (row_order && row_order->size() != static_cast<size_t>(outputs)) throw std::invalid_argument("weights: row order of another length");
    if (bias && bias->size() != static_cast<size_t>(outputs)) throw std::invalid_argument("weights: bias of another length");
    const int32_t* order = row_order ? row_order->data() : nullptr;
    for (int i = 0; order && i < outputs; i++)
      if (order[i] < 0 || order[i] >= outputs) throw std::invalid_argument("weights: row order out of range");
    nb::gil_scoped_release release;
    PackedLinear packed(arena_, source.kind, format_named(format, source.kind), outputs, inputs, bias ? bias->data() : nullptr);
    std::atomic<bool> failed{false};  // a team's body must not throw
    team_->for_each(packed.view().tiles, 8, [&](int64_t begin, int64_t end) {
      try {
        packed.pack_tiles(source, order, static_cast<int>(begin), static_cast<int>(end));
      } catch (const std::exception&) {
        failed = true;
      }
    });
    if (failed) throw std::bad_alloc();
    into = std::move(packed);
    return {format_name(into.view().format), into.bytes()};
  }

  void set_norm(int layer, const std::string& name, const Floats& values) {
    if (layer < 0 && name == "norm") {
      weights_.norm = floats(values);
      return;
    }
    LayerWeights& l = at(layer);
    if (name == "input_layernorm") l.input_norm = floats(values);
    else if (name == "post_attention_layernorm") l.post_norm = floats(values);
    else if (name == "q_norm") l.q_norm = floats(values);
    else if (name == "k_norm") l.k_norm = floats(values);
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

// A decoder with the buffers of its results.
class Model {
 public:
  Model(int hidden, int intermediate, int heads, int kv_heads, int head_dim, int vocab, float norm_eps, int window, float rope_scale,
        const Floats& inv_freq, Weights& weights, std::shared_ptr<Team> team, const std::string& kernels)
      : team_(team), kernels_(kernels_named(kernels)) {
    DecoderWeights taken = weights.take();
    DecoderShape shape;
    shape.layers = static_cast<int>(taken.layers.size());
    shape.hidden = hidden;
    shape.intermediate = intermediate;
    shape.heads = heads;
    shape.kv_heads = kv_heads;
    shape.head_dim = head_dim;
    shape.vocab = vocab;
    shape.norm_eps = norm_eps;
    shape.window = window;
    shape.rope_scale = rope_scale;
    shape.inv_freq = floats(inv_freq);
    decoder_ = std::make_unique<Decoder>(std::move(shape), std::move(taken), std::move(team), kernels_);
  }

  Model(const Model& whole, int layers)
      : team_(whole.team_),
        kernels_(whole.kernels_),
        decoder_(std::make_unique<Decoder>(*whole.decoder_, layers)),
        busy_(whole.busy_) {}

  nb::tuple forward(const Ints& tokens, const Ints& parents, const Ints& owners, std::vector<Cache*> caches, const Ints& logits_rows,
                    const Ints& taps) {
    if (parents.size() != tokens.size() || owners.size() != tokens.size()) throw std::invalid_argument("forward: arrays of different lengths");
    if (tokens.size() > (1u << 20)) throw std::invalid_argument("forward: too many rows");
    Batch batch;
    batch.rows = static_cast<int>(tokens.size());
    batch.tokens = tokens.data();
    batch.parents = parents.data();
    batch.owners = owners.data();
    batch.caches = std::move(caches);
    batch.logits = ints(logits_rows);
    batch.taps = ints(taps);
    const size_t wanted = batch.logits.size(), stride = static_cast<size_t>(decoder_->logits_stride());
    const size_t hidden = static_cast<size_t>(decoder_->shape().hidden), rows = tokens.size(), states = batch.taps.size();
    if (wanted > rows) throw std::invalid_argument("forward: logits of more rows than there are");
    Pool::Loan* logits = logits_->take(wanted * stride);
    nb::capsule logits_owner = capsule(logits);
    Pool::Loan* features = features_->take(rows * states * hidden);
    nb::capsule features_owner = capsule(features);
    {
      nb::gil_scoped_release release;
      std::lock_guard<std::mutex> lock(*busy_);
      decoder_->forward(batch, logits->buffer.as<float>(), features->buffer.as<float>());
    }
    const size_t vocab = static_cast<size_t>(decoder_->shape().vocab);
    return nb::make_tuple(
        Matrix(logits->buffer.as<float>(), {wanted, vocab}, logits_owner, {static_cast<int64_t>(stride), 1}),
        Cube(features->buffer.as<float>(), {rows, states, hidden}, features_owner));
  }

  int argmax(const nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>& row) const {
    return kernels_->argmax(row.data(), static_cast<int>(row.size()));
  }
  std::string kernels() const { return kernels_->name; }
  int threads() const { return team_->size(); }
  nb::dict profile() const {
    const Profile& p = decoder_->profile();
    nb::dict result;
    result["linear"] = p.linear;
    result["attention"] = p.attention;
    result["head"] = p.head;
    result["other"] = p.other;
    return result;
  }

 private:
  std::shared_ptr<Team> team_;
  const Kernels* kernels_;
  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<Pool> logits_ = std::make_shared<Pool>(), features_ = std::make_shared<Pool>();
  std::shared_ptr<std::mutex> busy_ = std::make_shared<std::mutex>();  // one for all that share a team
};

}  // namespace
}  // namespace forerun

NB_MODULE(_core, m) {
  using namespace forerun;
  m.def("available_kernels", &kernel_names, "Names of the kernels that this machine can run, the best first.");
  m.def("read_bandwidth",
        [](Team& team, int megabytes, int repeats) {
          if (megabytes < 1 || megabytes > 65536 || repeats < 1) throw std::invalid_argument("read_bandwidth: out of range");
          nb::gil_scoped_release release;
          return read_bandwidth(team, static_cast<size_t>(megabytes) << 20, repeats);
        },
        "team"_a, "megabytes"_a = 256, "repeats"_a = 5);
  bind_sampling(m);
  bind_drafting(m);
  nb::class_<Team>(m, "Team").def(nb::init<int>(), "threads"_a).def_prop_ro("size", &Team::size);
  nb::class_<Cache>(m, "Cache")
      .def("__init__",
           [](Cache* self, int layers, int kv_heads, int head_dim, const std::string& type, int capacity) {
             new (self) Cache(layers, kv_heads, head_dim, kv_type(type), capacity);
           },
           "layers"_a, "kv_heads"_a, "head_dim"_a, "type"_a, "capacity"_a)
      .def_prop_ro("length", &Cache::length)
      .def_prop_ro("capacity", &Cache::capacity)
      .def_prop_ro("bytes_per_token", &Cache::bytes_per_token)
      .def("commit", [](Cache& self, const Ints& path) { self.commit(path.data(), static_cast<int>(path.size())); }, "path"_a)
      .def("truncate", &Cache::truncate, "length"_a);
  nb::class_<Weights>(m, "Weights")
      .def(nb::init<int, std::shared_ptr<Team>>(), "layers"_a, "team"_a)
      .def("set_linear", &Weights::set_linear, "layer"_a, "name"_a, "kind"_a, "data"_a, "outputs"_a, "inputs"_a, "format"_a,
           "row_order"_a.none() = nb::none(), "bias"_a.none() = nb::none())
      .def("set_norm", &Weights::set_norm, "layer"_a, "name"_a, "values"_a);
  nb::class_<Model>(m, "Model")
      .def(nb::init<int, int, int, int, int, int, float, int, float, const Floats&, Weights&, std::shared_ptr<Team>, const std::string&>(),
           "hidden"_a, "intermediate"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "vocab"_a, "norm_eps"_a, "window"_a, "rope_scale"_a,
           "inv_freq"_a, "weights"_a, "team"_a, "kernels"_a)
      .def("forward", &Model::forward, "tokens"_a, "parents"_a, "owners"_a, "caches"_a, "logits"_a, "taps"_a,
           "Computes and stages rows; returns logits [wanted, vocab] and features [rows, taps, hidden].")
      .def("first_layers", [](const Model& self, int layers) { return std::make_unique<Model>(self, layers); }, "layers"_a)
      .def("argmax", &Model::argmax, "row"_a)
      .def_prop_ro("kernels", &Model::kernels)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("profile", &Model::profile, "Seconds that the last forward spent in linear, attention, head and other.");
}
