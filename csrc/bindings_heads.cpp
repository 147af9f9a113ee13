// The part of the Python module forerun._core that drafts with heads on the target's hidden states.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "drafting/candidates.h"
#include "drafting/eagle.h"
#include "drafting/hydra.h"
#include "drafting/medusa.h"
#include "gathering.h"
#include "sampling/settings.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Ints = Vector<int32_t>;
using Floats = Vector<float>;
using Features = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;

constexpr size_t kMostRowsAtOnce = size_t(1) << 20, kFew = 32, kPiece = 128;

KvType kv_type(const std::string& name) {
  if (name == "f32") return KvType::f32;
  if (name == "f16") return KvType::f16;
  if (name == "bf16") return KvType::bf16;
  throw std::invalid_argument("no cache type '" + name + "' for a head");
}

void check(const Features& features, size_t count, size_t width) {
  if (count > kMostRowsAtOnce || features.size() != count * width) throw std::invalid_argument("observe: features of another shape");
}

// What was observed beside so many tokens: as many rows of features, or none.
std::vector<float> features_of(const std::optional<Features>& features, size_t count, size_t width) {
  if (!features) return {};
  check(*features, count, width);
  return {features->data(), features->data() + features->size()};
}

std::shared_ptr<EagleHead> new_eagle(int hidden, int intermediate, int heads, int kv_heads, int head_dim, int vocab, int outputs, float norm_eps,
                                     float rope_scale, const Floats& inv_freq, Weights& weights, const std::optional<PackedLinear>& fc,
                                     const Floats& fc_norm, int fc_norms, const Ints& tokens, std::shared_ptr<TargetRows> rows,
                                     std::shared_ptr<Team> team, const std::string& kernels) {
  DecoderWeights taken = weights.take();
  DecoderShape shape;
  shape.layers = static_cast<int>(taken.layers.size());
  shape.hidden = hidden;
  shape.intermediate = intermediate;
  shape.heads = heads;
  shape.kv_heads = kv_heads;
  shape.head_dim = head_dim;
  shape.vocab = vocab;
  shape.outputs = outputs;
  shape.norm_eps = norm_eps;
  shape.rope_scale = rope_scale;
  shape.inv_freq = copy(inv_freq);
  Reduction reduction{fc ? *fc : PackedLinear(), copy(fc_norm), fc_norms};
  return std::make_shared<EagleHead>(std::move(shape), std::move(taken), std::move(reduction), copy(tokens), std::move(rows), std::move(team),
                                     kernels_named(kernels));
}

nb::ndarray<nb::numpy, float, nb::ndim<1>> as_array(std::vector<float> values) {
  auto* held = new std::vector<float>(std::move(values));
  nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<float>*>(p); });
  return {held->data(), {held->size()}, owner};
}

template <class Drafter>
DraftTree propose(Drafter& self, int nodes, int depth, float least_chance) {
  Draft draft;
  {
    const Unlocked unlocked;
    draft = self.propose(nodes, depth, least_chance);
  }
  return DraftTree(self.last(), draft);
}

// A drafter that reads the target's last hidden state alone.
template <class Drafter, class Heads>
void bind_last_state(nb::module_& m, const char* name) {
  nb::class_<Drafter>(m, name)
      .def("__init__",
           [](Drafter* self, std::shared_ptr<Heads> heads, const SamplingSettings& settings) {
             Candidates candidates(settings, heads->outputs(), heads->tokens(), heads->kernels());
             new (self) Drafter(std::move(heads), std::move(candidates));
           },
           "heads"_a, "settings"_a)
      .def("begin", [](Drafter& self) { self.begin(); })
      .def("observe",
           [](Drafter& self, const std::vector<int32_t>& tokens, const std::optional<Features>& features, bool) {
             const size_t width = static_cast<size_t>(self.hidden());
             const std::vector<float> values = features_of(features, tokens.size(), width);
             self.observe(tokens.data(), static_cast<int>(tokens.size()), values.empty() ? nullptr : values.data() + values.size() - width);
           },
           "tokens"_a, "features"_a.none(), "reads"_a = true)
      .def("truncate", [](Drafter& self, int length) { self.truncate(length); }, "length"_a)
      .def("propose", &propose<Drafter>, "nodes"_a, "depth"_a, "least_chance"_a, "A tree below the text's last token.")
      .def_prop_ro("length", [](const Drafter& self) { return self.length(); })
      .def_prop_ro("rare", [](const Drafter& self) { return self.rare(); }, "Tokens of the text that the heads lack, and could say all the same.");
}

}  // namespace

void bind_heads(nb::module_& m) {
  nb::class_<PackedLinear>(m, "Linear")
      .def("__init__",
           [](PackedLinear* self, Team& team, const std::string& kind, const Bytes& data, int outputs, int inputs, const std::string& format,
              const std::optional<Floats>& bias) {
             new (self) PackedLinear(pack_tensor(team, std::make_shared<Arena>(), kind, data, outputs, inputs, format, std::nullopt, bias));
           },
           "team"_a, "kind"_a, nb::arg("data").noconvert(), "outputs"_a, "inputs"_a, "format"_a, nb::arg("bias").noconvert().none() = nb::none())
      .def_prop_ro("outputs", [](const PackedLinear& self) { return self.view().outputs; })
      .def_prop_ro("inputs", [](const PackedLinear& self) { return self.view().inputs; })
      .def_prop_ro("format", [](const PackedLinear& self) { return format_name(self.view().format); })
      .def_prop_ro("bytes", &PackedLinear::bytes)
      .def("rows",
           [](const PackedLinear& self, Team& team, const Ints& rows, const std::string& format) {
             return take_rows(team, self, copy(rows), format);
           },
           "team"_a, nb::arg("rows").noconvert(), "format"_a);
  nb::class_<TargetRows>(m, "TargetRows")
      .def(nb::new_([](const PackedLinear& from, const std::string& format, int most) {
             if (most < 1 || most > kMostOutputs) throw std::invalid_argument("rows of the target: a number out of range");
             return std::make_shared<TargetRows>(TargetRows{from, format_named(format, SourceKind::F32), most});
           }),
           "source"_a, "format"_a, "most"_a);
  nb::class_<EagleHead>(m, "EagleHead")
      .def(nb::new_(&new_eagle), "hidden"_a, "intermediate"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "vocab"_a, "outputs"_a, "norm_eps"_a,
           "rope_scale"_a, nb::arg("inv_freq").noconvert(), "weights"_a, "fc"_a.none(), nb::arg("fc_norm").noconvert(), "fc_norms"_a,
           nb::arg("tokens").noconvert(), "rows"_a.none(), "team"_a, "kernels"_a)
      .def_prop_ro("features", &EagleHead::features);
  nb::class_<EagleDrafter>(m, "EagleDrafter")
      .def("__init__",
           [](EagleDrafter* self, std::shared_ptr<EagleHead> head, const SamplingSettings& settings, const std::string& kv, int capacity) {
             Candidates candidates(settings, head->decoder().outputs(), head->tokens(), head->kernels());
             new (self) EagleDrafter(std::move(head), std::move(candidates), kv_type(kv), capacity);
           },
           "head"_a, "settings"_a, "kv"_a, "capacity"_a)
      .def("begin", &EagleDrafter::begin)
      .def("observe",
           [](EagleDrafter& self, const std::vector<int32_t>& tokens, const std::optional<Features>& features, bool reads) {
             if (features && !reads && tokens.size() <= kFew) {  // nothing is computed
               check(*features, tokens.size(), static_cast<size_t>(self.features()));
               self.observe(tokens.data(), features->data(), static_cast<int>(tokens.size()), false);
               return;
             }
             const size_t width = static_cast<size_t>(self.features());
             if (!features) {
               const Unlocked unlocked;
               self.observe(tokens.data(), nullptr, static_cast<int>(tokens.size()), reads);
               return;
             }
             check(*features, tokens.size(), width);
             for (size_t at = 0; at < tokens.size(); at += kPiece) {  // copies of a long prompt's features would be large
               const size_t count = std::min(kPiece, tokens.size() - at);
               const float* first = features->data() + at * width;
               const std::vector<float> values(first, first + count * width);
               const Unlocked unlocked;
               self.observe(tokens.data() + at, values.data(), static_cast<int>(count), reads);
             }
           },
           "tokens"_a, "features"_a.none(), "reads"_a = true)
      .def("truncate", &EagleDrafter::truncate, "length"_a)
      .def("propose", &propose<EagleDrafter>, "nodes"_a, "depth"_a, "least_chance"_a, "A tree below the text's last token.")
      .def_prop_ro("length", &EagleDrafter::length)
      .def_prop_ro("computed", &EagleDrafter::computed)
      .def_prop_ro("rare", &EagleDrafter::rare, "Tokens of the text that the head lacks, and could say all the same.")
      .def_prop_ro("logits", [](const EagleDrafter& self) { return as_array(self.logits()); }, nb::rv_policy::reference);
  nb::class_<MedusaHeads>(m, "MedusaHeads")
      .def(nb::new_([](const std::vector<std::pair<std::vector<PackedLinear>, PackedLinear>>& heads, const Ints& tokens,
                       std::shared_ptr<TargetRows> rows, std::shared_ptr<Team> team, const std::string& kernels) {
             std::vector<MedusaHead> all;
             for (const auto& [blocks, out] : heads) all.push_back({blocks, out});
             return std::make_shared<MedusaHeads>(std::move(all), copy(tokens), std::move(rows), std::move(team), kernels_named(kernels));
           }),
           "heads"_a, nb::arg("tokens").noconvert(), "rows"_a.none(), "team"_a, "kernels"_a)
      .def("logits",
           [](const MedusaHeads& self, int head, const Floats& state) {
             if (head < 0 || head >= self.size() || state.size() != static_cast<size_t>(self.hidden()))
               throw std::invalid_argument("medusa: no such head, or a state of another size");
             std::vector<float> values = self.logits(head, copy(state).data(), Linear{});
             values.resize(static_cast<size_t>(self.outputs()));
             return as_array(std::move(values));
           },
           "head"_a, nb::arg("state").noconvert());
  bind_last_state<MedusaDrafter, MedusaHeads>(m, "MedusaDrafter");
  nb::class_<HydraHeads>(m, "HydraHeads")
      .def(nb::new_([](const std::vector<std::tuple<PackedLinear, std::vector<PackedLinear>, PackedLinear>>& heads, const PackedLinear& embedding,
                       const Ints& tokens, std::shared_ptr<TargetRows> rows, std::shared_ptr<Team> team, const std::string& kernels) {
             std::vector<HydraHead> all;
             for (const auto& [first, blocks, out] : heads) all.push_back({first, blocks, out});
             return std::make_shared<HydraHeads>(std::move(all), embedding, copy(tokens), std::move(rows), std::move(team), kernels_named(kernels));
           }),
           "heads"_a, "embedding"_a, nb::arg("tokens").noconvert(), "rows"_a.none(), "team"_a, "kernels"_a)
      .def("logits",
           [](const HydraHeads& self, const Floats& state, const std::vector<int32_t>& tokens) {
             const size_t hidden = static_cast<size_t>(self.hidden());
             if (tokens.empty() || tokens.size() > static_cast<size_t>(self.size()) || state.size() != hidden)
               throw std::invalid_argument("hydra: no such head, or a state of another size");
             std::vector<float> inputs = copy(state);
             inputs.resize(hidden * (1 + tokens.size()));
             for (size_t i = 0; i < tokens.size(); i++) self.embed(tokens[i], inputs.data() + (i + 1) * hidden);
             std::vector<float> values(self.stride(Linear{}));
             self.logits(static_cast<int>(tokens.size()) - 1, inputs.data(), 1, Linear{}, values.data());
             values.resize(static_cast<size_t>(self.outputs()));
             return as_array(std::move(values));
           },
           nb::arg("state").noconvert(), "tokens"_a, "Of the token after these, the first of which follows the state's.");
  bind_last_state<HydraDrafter, HydraHeads>(m, "HydraDrafter");
}

}  // namespace forerun
