// The sampling part of the Python module forerun._core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/choice.h"
#include "kernels/kernels.h"
#include "output.h"
#include "sampling/chooser.h"
#include "sampling/logprobs.h"
#include "sampling/noise.h"
#include "sampling/settings.h"
#include "sampling/walk.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Bits = nb::ndarray<const uint32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Rows = nb::ndarray<const float, nb::ndim<2>, nb::device::cpu>;
using Proposal = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Doubles = nb::ndarray<nb::numpy, double, nb::ndim<1>>;

std::vector<int32_t> ints(const Ints& a) { return {a.data(), a.data() + a.size()}; }

const Kernels* kernels_named(const std::string& name) {
  const Kernels* kernels = find_kernels(name.c_str());
  if (kernels == nullptr) throw std::invalid_argument("no kernels '" + name + "' on this machine");
  return kernels;
}

// An array of its own for Python, with room for n.
std::pair<double*, Doubles> new_doubles(size_t n) {
  auto* data = new double[n];
  return {data, Doubles(data, {n}, nb::capsule(data, [](void* p) noexcept { delete[] static_cast<double*>(p); }))};
}

// What a call to a chooser is given, checked.
struct Call {
  Call(const Chooser& chooser, const Floats& logits, const Ints& history, const std::vector<int32_t>& path, const std::optional<Bits>& bits)
      : text{history.data(), static_cast<int>(history.size()), path.data(), static_cast<int>(path.size())},
        allowed(bits ? bits->data() : nullptr) {
    const auto vocab = static_cast<size_t>(chooser.vocab());
    if (logits.size() != vocab) throw std::invalid_argument("logits of another vocabulary");
    if (bits && bits->size() < (vocab + 31) / 32) throw std::invalid_argument("allowed: too few bits");
    if (history.size() + path.size() > (1u << 30)) throw std::invalid_argument("a text too long");
  }
  Text text;
  const uint32_t* allowed;
};

std::optional<nb::tuple> walked(Chooser& chooser, const float* logits, size_t rows, size_t vocab, size_t stride, const Ints& history,
                                const DraftTree& tree, bool by_rejection) {
  if (rows < static_cast<size_t>(tree.size()) || vocab != static_cast<size_t>(chooser.vocab()) || history.size() > (1u << 30))
    throw std::invalid_argument("walk: logits of another shape");
  const Rule rule = by_rejection ? Rule::rejection : Rule::coupled;
  const Walk done = walk(chooser, rule, tree, logits, stride, history.data(), static_cast<int>(history.size()));
  if (done.wrong != 0) return std::nullopt;
  return nb::make_tuple(done.path, done.tokens, done.checked);
}

void new_settings(SamplingSettings* self, int vocab_size, int prompt_length, double temperature, int top_k, double top_p,
                  std::optional<double> log_min_p, bool coupled, bool counts_history, float repetition, float presence, float frequency,
                  const Ints& bias_tokens, const Floats& bias, const Ints& forbidden, const Ints& end_tokens, int min_tokens, uint64_t seed) {
  new (self) SamplingSettings;
  ProcessorSettings& processing = self->processing;
  processing.vocab = vocab_size;
  processing.prompt_length = prompt_length;
  processing.min_tokens = min_tokens;
  processing.counts_history = counts_history;
  processing.repetition = repetition;
  processing.presence = presence;
  processing.frequency = frequency;
  processing.bias_tokens = ints(bias_tokens);
  processing.bias = {bias.data(), bias.data() + bias.size()};
  processing.forbidden = ints(forbidden);
  processing.end_tokens = ints(end_tokens);
  ChoiceSettings& choice = self->choice;
  choice.temperature = temperature;
  choice.top_k = top_k;
  choice.top_p = top_p;
  choice.has_min_p = log_min_p.has_value();
  choice.log_min_p = log_min_p.value_or(0.0);
  choice.coupled = coupled;
  choice.seed = seed;
}

}  // namespace

void bind_sampling(nb::module_& m) {
  nb::class_<SamplingSettings>(m, "SamplingSettings")
      .def("__init__", &new_settings,
           "vocab_size"_a, "prompt_length"_a, "temperature"_a, "top_k"_a, "top_p"_a, "log_min_p"_a.none(), "coupled"_a, "counts_history"_a,
           "repetition"_a, "presence"_a, "frequency"_a, "bias_tokens"_a, "bias"_a, "forbidden"_a, "end_tokens"_a, "min_tokens"_a,
           "seed"_a);
  nb::class_<Chooser>(m, "Chooser")
      .def("__init__",
           [](Chooser* self, const SamplingSettings& settings, const std::string& kernels) { new (self) Chooser(settings, kernels_named(kernels)); },
           "settings"_a, "kernels"_a = "")
      .def("choose",
           [](Chooser& self, const Floats& logits, const Ints& history, const std::vector<int32_t>& path, const std::optional<Bits>& allowed) {
             const Call call(self, logits, history, path, allowed);
             return self.choose(logits.data(), call.text, call.allowed);
           },
           "logits"_a, "history"_a, "path"_a, "allowed"_a.none() = nb::none(),
           "The token that follows; -1: a logit is not a number; -2: nothing is allowed.")
      .def("choose_by_rejection",
           [](Chooser& self, const Floats& logits, const Ints& history, const std::vector<int32_t>& path,
              const std::vector<int32_t>& candidates, const std::optional<Proposal>& proposal, const std::optional<Bits>& allowed) {
             const Call call(self, logits, history, path, allowed);
             for (int32_t token : candidates)
               if (token < 0 || token >= self.vocab()) throw std::invalid_argument("a candidate outside the vocabulary");
             if (proposal && proposal->size() != static_cast<size_t>(self.vocab())) throw std::invalid_argument("a proposal over another vocabulary");
             return self.choose_by_rejection(logits.data(), call.text, call.allowed, candidates, proposal ? proposal->data() : nullptr);
           },
           "logits"_a, "history"_a, "path"_a, "candidates"_a, "proposal"_a.none(), "allowed"_a.none() = nb::none(),
           "As choose, by the rejection rule.")
      .def("walk",
           [](Chooser& self, const Output& output, const Ints& history, const DraftTree& tree, bool by_rejection) {
             return walked(self, output.logits_data(), output.rows(), output.vocab(), output.stride(), history, tree, by_rejection);
           },
           "logits"_a, "history"_a, "tree"_a, "by_rejection"_a,
           "The accepted path, what was chosen along it, and how many of its nodes had children; None: nothing at the root.")
      .def("walk",
           [](Chooser& self, const Rows& logits, const Ints& history, const DraftTree& tree, bool by_rejection) {
             if (logits.stride(1) != 1 || logits.stride(0) < 0) throw std::invalid_argument("walk: logits of another shape");
             return walked(self, logits.data(), logits.shape(0), logits.shape(1), static_cast<size_t>(logits.stride(0)), history, tree, by_rejection);
           },
           "logits"_a, "history"_a, "tree"_a, "by_rejection"_a)
      .def("rank",
           [](Chooser& self, const Floats& logits, const Ints& history, const std::vector<int32_t>& path, int count,
              const std::optional<Bits>& allowed) {
             if (count < 0) throw std::invalid_argument("rank: a negative count");
             const Call call(self, logits, history, path, allowed);
             std::vector<Candidate> found;
             const int wrong = self.rank(logits.data(), call.text, call.allowed, static_cast<size_t>(count), found);
             std::vector<int32_t> tokens;
             std::vector<double> chances;
             for (const Candidate& one : found) {
               tokens.push_back(one.token);
               chances.push_back(one.chance);
             }
             return nb::make_tuple(wrong, tokens, chances);
           },
           "logits"_a, "history"_a, "path"_a, "count"_a, "allowed"_a.none() = nb::none(),
           "What choose would say of the same mistakes, else 0; the best tokens with noise, and their chances.")
      .def("draw",
           [](Chooser& self, const Floats& logits, const Ints& history, const std::vector<int32_t>& path, int count, uint32_t serial,
              const std::optional<Bits>& allowed) {
             if (count < 0) throw std::invalid_argument("draw: a negative count");
             const Call call(self, logits, history, path, allowed);
             auto [data, proposal] = new_doubles(static_cast<size_t>(self.vocab()));
             std::vector<int32_t> tokens;
             const int wrong = self.draw(logits.data(), call.text, call.allowed, static_cast<size_t>(count), serial, tokens, data);
             return nb::make_tuple(wrong, tokens, std::move(proposal));
           },
           "logits"_a, "history"_a, "path"_a, "count"_a, "serial"_a, "allowed"_a.none() = nb::none(),
           "What choose would say of the same mistakes, else 0; tokens drawn without replacement, and what they were drawn from.")
      .def("probabilities",
           [](Chooser& self, const Floats& logits, const Ints& history, const std::vector<int32_t>& path, const std::optional<Bits>& allowed) {
             const Call call(self, logits, history, path, allowed);
             auto [data, result] = new_doubles(static_cast<size_t>(self.vocab()));
             const int wrong = self.probabilities(logits.data(), call.text, call.allowed, data);
             return std::make_pair(wrong, std::move(result));
           },
           "logits"_a, "history"_a, "path"_a, "allowed"_a.none() = nb::none(),
           "What choose would say of the same mistakes, else 0, and the distribution, float64 [vocabulary].");
  m.def("gumbel",
        [](uint64_t seed, uint32_t position, const Ints& tokens) {
          auto [data, result] = new_doubles(tokens.size());
          for (size_t i = 0; i < tokens.size(); i++) {
            const int32_t token = tokens.data()[i];
            if (token < 0) throw std::invalid_argument("gumbel: a negative token id");
            const auto group = static_cast<uint32_t>(token / kBlock);
            const auto words = philox(seed, group / 2, position, kGroupStream);
            const size_t at = 2 * (group % 2);
            data[i] = gumbel_noise(seed, position, token, least_noise(words[at]), holder(words[at + 1]));
          }
          return std::move(result);
        },
        "seed"_a, "position"_a, "tokens"_a, "Gumbel noise of these tokens at this position, float64 [n].");
  m.def("log_probabilities",
        [](const Floats& logits, int token, int top, const std::string& kernels) -> std::optional<std::pair<double, std::vector<std::pair<int, double>>>> {
          if (logits.size() > (1u << 30) || token < 0 || static_cast<size_t>(token) >= logits.size())
            throw std::invalid_argument("log_probabilities: no such token");
          if (top < 0 || static_cast<size_t>(top) > logits.size()) throw std::invalid_argument("log_probabilities: top out of range");
          Logprobs result;
          if (!log_probabilities(*kernels_named(kernels), logits.data(), static_cast<int>(logits.size()), token, top, result)) return std::nullopt;
          return std::make_pair(result.own, std::move(result.top));
        },
        "logits"_a, "token"_a, "top"_a, "kernels"_a = "",
        "Log-probability of a token, and the most probable tokens with theirs; None where the logits are not finite enough.");
}

}  // namespace forerun
