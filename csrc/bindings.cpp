// The Python module forerun._core: thin faces over the C++ classes. Shapes and ranges are checked here or in the classes;
// a mistake raises ValueError or TypeError, lack of memory MemoryError, a cache in another thread's hands RuntimeError.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "arrays.h"
#include "decoding/tree.h"
#include "gathering.h"
#include "kernels/kernels.h"
#include "model/cache.h"
#include "model/decoder.h"
#include "output.h"
#include "runtime/bandwidth.h"
#include "runtime/threads.h"
#include "weights/packed.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

void bind_sampling(nb::module_& m);  // bindings_sampling.cpp
void bind_drafting(nb::module_& m);  // bindings_drafting.cpp
void bind_heads(nb::module_& m);     // bindings_heads.cpp
void bind_decoding(nb::module_& m);  // bindings_decoding.cpp

namespace {

using Ints = Vector<int32_t>;
using Floats = Vector<float>;

KvType kv_type(const std::string& name) {
  if (name == "f32") return KvType::f32;
  if (name == "f16") return KvType::f16;
  if (name == "bf16") return KvType::bf16;
  if (name == "q8") return KvType::q8;
  throw std::invalid_argument("no cache type '" + name + "'");
}

std::vector<std::string> kernel_names() {
  const Kernels* tables[8];
  const int n = available_kernels(tables, 8);
  std::vector<std::string> names;
  for (int i = 0; i < n; i++) names.emplace_back(tables[i]->name);
  return names;
}

// The caches of a list, whose items stay alive as long as `items`.
std::vector<Cache*> caches_of(const std::vector<nb::object>& items) {
  std::vector<Cache*> caches;
  for (const nb::object& item : items) {
    Cache* cache = nullptr;
    if (!nb::try_cast<Cache*>(item, cache, false) || cache == nullptr) throw nb::type_error("forward: what is not a cache among the caches");
    caches.push_back(cache);
  }
  return caches;
}

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
    shape.inv_freq = copy(inv_freq);
    decoder_ = std::make_unique<Decoder>(std::move(shape), std::move(taken), std::move(team), kernels_);
  }

  Model(const Model& whole, int layers)
      : team_(whole.team_), kernels_(whole.kernels_), decoder_(std::make_unique<Decoder>(*whole.decoder_, layers)) {}

  nb::tuple forward(const Ints& tokens, const Ints& parents, const Ints& owners, const std::vector<nb::object>& caches,
                    const Ints& logits_rows, const Ints& taps, bool continues) {
    const Output output = compute({copy(tokens), copy(parents), copy(owners), caches_of(caches), copy(logits_rows), copy(taps), {}, continues});
    return nb::make_tuple(output.logits(), output.features());
  }

  // The nodes of a tree behind what the cache holds, and the logits of all of them.
  Output verify(const DraftTree& tree, Cache& cache, const std::vector<int32_t>& taps) {
    std::vector<int32_t> rows(static_cast<size_t>(tree.size()));
    std::iota(rows.begin(), rows.end(), 0);
    return compute({tree.tokens(), tree.parents(), std::vector<int32_t>(rows.size(), 0), {&cache}, rows, taps, {}, false});
  }

  int argmax(const Floats& row) const {
    const std::vector<float> values = copy(row);
    if (values.empty() || values.size() > INT_MAX) throw std::invalid_argument("argmax: a row of another length");
    return kernels_->argmax(values.data(), static_cast<int>(values.size()));
  }
  PackedLinear embedding() const { return decoder_->weights().embed; }
  PackedLinear head() const { return decoder_->weights().head.empty() ? embedding() : decoder_->weights().head; }
  std::shared_ptr<Team> team() const { return team_; }
  std::string kernels() const { return kernels_->name; }
  int threads() const { return team_->size(); }
  nb::dict profile() {
    Profile p;
    {
      const Unlocked unlocked;
      p = decoder_->profile();
    }
    nb::dict result;
    result["linear"] = p.linear;
    result["attention"] = p.attention;
    result["head"] = p.head;
    result["other"] = p.other;
    return result;
  }

 private:
  Output compute(Batch batch) {
    const size_t wanted = batch.logits.size(), rows = batch.tokens.size(), states = batch.taps.size();
    const DecoderShape& shape = decoder_->shape();
    if (rows > kMostRows) throw std::invalid_argument("forward: too many rows");
    if (wanted > rows) throw std::invalid_argument("forward: logits of more rows than there are");
    if (states > static_cast<size_t>(shape.layers) + 1) throw std::invalid_argument("forward: more hidden states than there are");
    Output output(*logits_, *features_, wanted, static_cast<size_t>(shape.vocab), static_cast<size_t>(decoder_->logits_stride()), rows, states,
                  static_cast<size_t>(shape.hidden));
    const Unlocked unlocked;
    decoder_->forward(std::move(batch), output.logits_data(), output.features_data());
    return output;
  }

  std::shared_ptr<Team> team_;
  const Kernels* kernels_;
  std::unique_ptr<Decoder> decoder_;
  std::shared_ptr<Pool> logits_ = std::make_shared<Pool>(), features_ = std::make_shared<Pool>();
};

}  // namespace
}  // namespace forerun

NB_MODULE(_core, m) {
  using namespace forerun;
  nb::set_leak_warnings(false);  // daemon threads hold objects until the end, and that is all right
  m.def("available_kernels", &kernel_names, "Names of the kernels that this machine can run, the best first.");
  m.def("read_bandwidth",
        [](Team& team, int megabytes, int repeats) {
          if (megabytes < 1 || megabytes > 65536 || repeats < 1) throw std::invalid_argument("read_bandwidth: out of range");
          const Unlocked unlocked;
          return read_bandwidth(team, static_cast<size_t>(megabytes) << 20, repeats);
        },
        "team"_a, "megabytes"_a = 256, "repeats"_a = 5);
  bind_decoding(m);
  bind_sampling(m);
  bind_drafting(m);
  bind_heads(m);
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
      .def("commit", [](Cache& self, const Ints& path) { self.commit(copy(path)); }, nb::arg("path").noconvert())
      .def("commit", [](Cache& self, const nb::list& path) { self.commit(nb::cast<std::vector<int32_t>>(path)); }, "path"_a)
      .def("truncate", &Cache::truncate, "length"_a);
  nb::class_<Weights>(m, "Weights")
      .def(nb::init<int, std::shared_ptr<Team>>(), "layers"_a, "team"_a)
      .def("set_linear", &Weights::set_linear, "layer"_a, "name"_a, "kind"_a, nb::arg("data").noconvert(), "outputs"_a, "inputs"_a, "format"_a,
           nb::arg("row_order").noconvert().none() = nb::none(), nb::arg("bias").noconvert().none() = nb::none())
      .def("share", &Weights::share, "name"_a, "linear"_a)
      .def("set_entry", &Weights::set_entry, "kind"_a, "residual_is_normed"_a, "hands_on_normed"_a)
      .def("set_norm", &Weights::set_norm, "layer"_a, "name"_a, nb::arg("values").noconvert());
  nb::class_<Output>(m, "Output")
      .def_prop_ro("logits", &Output::logits, nb::rv_policy::reference)
      .def_prop_ro("features", &Output::features, nb::rv_policy::reference);
  nb::class_<Model>(m, "Model")
      .def(nb::init<int, int, int, int, int, int, float, int, float, const Floats&, Weights&, std::shared_ptr<Team>, const std::string&>(),
           "hidden"_a, "intermediate"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "vocab"_a, "norm_eps"_a, "window"_a, "rope_scale"_a,
           nb::arg("inv_freq").noconvert(), "weights"_a, "team"_a, "kernels"_a)
      .def("forward", &Model::forward, nb::arg("tokens").noconvert(), nb::arg("parents").noconvert(), nb::arg("owners").noconvert(),
           "caches"_a, nb::arg("logits").noconvert(), nb::arg("taps").noconvert(),
           "continues"_a = false, "Computes and stages rows; returns logits [wanted, vocab] and features [rows, taps, hidden].")
      .def("verify", &Model::verify, "tree"_a, "cache"_a, "taps"_a, "The nodes of a tree behind what the cache holds, and the logits of all of them.")
      .def("first_layers", [](const Model& self, int layers) { return std::make_unique<Model>(self, layers); }, "layers"_a)
      .def_prop_ro("embedding", &Model::embedding)
      .def_prop_ro("head", &Model::head)
      .def_prop_ro("team", &Model::team)
      .def("argmax", &Model::argmax, nb::arg("row").noconvert())
      .def_prop_ro("kernels", &Model::kernels)
      .def_prop_ro("threads", &Model::threads)
      .def_prop_ro("profile", &Model::profile, "Seconds that the last forward spent in linear, attention, head and other.");
}
