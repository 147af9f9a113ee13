// The part of the Python module forerun._core that decides what is verified: draft trees, what their nodes are worth.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "decoding/account.h"
#include "decoding/curve.h"
#include "decoding/merge.h"
#include "decoding/records.h"
#include "decoding/tree.h"
#include "decoding/worth.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {
namespace {

using Shares = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using SharesView = nb::ndarray<nb::numpy, const double, nb::ndim<1>>;

// The items of a list or another collection; of an array only if it has one dimension and numbers of these kinds.
nb::list as_list(nb::handle values, const char* kinds) {
  if (PyList_CheckExact(values.ptr())) return nb::borrow<nb::list>(values);
  if (!nb::hasattr(values, "dtype")) return nb::list(values);
  const auto kind = nb::cast<std::string>(values.attr("dtype").attr("kind"));
  if (nb::cast<int>(values.attr("ndim")) != 1 || std::string(kinds).find(kind) == std::string::npos)
    throw nb::value_error("a tree's tokens and parents are whole numbers, its chances numbers, in one row");
  return nb::cast<nb::list>(values.attr("tolist")());
}

// What is no int32 is -1: no vocabulary and no tree has it.
std::vector<int32_t> whole_numbers(nb::handle values) {
  std::vector<int32_t> numbers;
  for (const nb::handle item : as_list(values, "iu")) {
    const nb::object number = nb::steal(PyNumber_Index(item.ptr()));
    int overflow = 0;
    const long long value = number.is_valid() ? PyLong_AsLongLongAndOverflow(number.ptr(), &overflow) : 0;
    if (!number.is_valid()) {
      PyErr_Clear();
      throw nb::value_error("a tree's tokens and parents are whole numbers");
    }
    using Limits = std::numeric_limits<int32_t>;
    numbers.push_back(overflow || value < Limits::min() || value > Limits::max() ? -1 : static_cast<int32_t>(value));
  }
  return numbers;
}

std::vector<double> numbers(nb::handle values) {
  if (values.is_none()) return {};
  std::vector<double> all;
  for (const nb::handle item : as_list(values, "iuf")) {
    double value;
    if (!nb::try_cast(item, value)) throw nb::value_error("a tree's chances are numbers");
    all.push_back(value);
  }
  return all;
}

DraftTree::Proposals proposals_of(nb::handle mapping) {
  if (!nb::isinstance<nb::dict>(mapping)) throw nb::value_error("a tree's proposals are a dict of distributions by node");
  DraftTree::Proposals proposals;
  for (const auto& [key, value] : nb::borrow<nb::dict>(mapping)) {
    int32_t node;
    Shares shares;
    if (!nb::try_cast(key, node) || !nb::try_cast(value, shares))
      throw nb::value_error("a tree's proposals are by node, each a float64 array over the vocabulary");
    const double* data = shares.data();
    const size_t size = shares.size();
    proposals[node] = {{data, [shares = std::move(shares)](const double*) {}}, size};
  }
  return proposals;
}

nb::dict proposals_as_dict(const DraftTree& tree) {
  nb::dict all;
  for (const auto& [node, proposal] : tree.proposals()) {
    auto* held = new std::shared_ptr<const double>(proposal.shares);
    const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::shared_ptr<const double>*>(p); });
    all[nb::int_(node)] = nb::cast(SharesView(proposal.shares.get(), {proposal.size}, owner));
  }
  return all;
}

template <class T>
nb::object as_array(std::vector<T> values) {
  auto* held = new std::vector<T>(std::move(values));
  const nb::capsule owner(held, [](void* p) noexcept { delete static_cast<std::vector<T>*>(p); });
  return nb::cast(nb::ndarray<nb::numpy, T, nb::ndim<1>>(held->data(), {held->size()}, owner));
}

void bind_tree(nb::module_& m) {
  nb::class_<DraftTree>(m, "DraftTree")
      .def("__init__",
           [](DraftTree* self, nb::handle tokens, nb::handle parents, std::vector<std::string> origins, nb::handle proposals, nb::handle chances) {
             new (self) DraftTree(whole_numbers(tokens), whole_numbers(parents), std::move(origins), numbers(chances), proposals_of(proposals));
           },
           "tokens"_a, "parents"_a, "origins"_a = nb::tuple(), "proposals"_a = nb::dict(), "chances"_a = nb::none())
      .def_static("chain", [](int32_t root, nb::handle guesses) { return DraftTree::chain(root, whole_numbers(guesses)); }, "root"_a,
                  "guesses"_a = nb::list())
      .def("__len__", &DraftTree::size)
      .def_prop_ro("ids", &DraftTree::tokens)
      .def_prop_ro("above", &DraftTree::parents)
      .def_prop_ro("odds", [](const DraftTree& self) { return self.chances().empty() ? nb::none() : nb::cast(self.chances()); })
      .def_prop_ro("origins", [](const DraftTree& self) { return nb::tuple(nb::cast(self.origins())); })
      .def_prop_ro("proposals", &proposals_as_dict)
      .def_prop_ro("drawn", [](const DraftTree& self) { return !self.proposals().empty(); })
      .def_prop_ro("tokens", [](const DraftTree& self) { return as_array(self.tokens()); })
      .def_prop_ro("parents", [](const DraftTree& self) { return as_array(self.parents()); })
      .def_prop_ro("chances",
                   [](const DraftTree& self) {
                     return self.chances().empty() ? nb::none() : as_array(std::vector<float>(self.chances().begin(), self.chances().end()));
                   })
      .def_prop_ro("depths", &DraftTree::depths)
      .def_prop_ro("children", &DraftTree::children)
      .def("path", &DraftTree::path, "node"_a)
      .def("only",
           [](nb::object self, const std::vector<int32_t>& nodes) {
             const auto& tree = nb::cast<const DraftTree&>(self);
             bool all = nodes.size() == static_cast<size_t>(tree.size());
             for (size_t i = 0; i < nodes.size(); i++) all = all && nodes[i] == static_cast<int32_t>(i);
             return all ? self : nb::cast(tree.only(nodes));
           },
           "nodes"_a)
      .def("fit",
           [](nb::object self, int32_t root, int nodes, int depth, int vocab_size) {
             std::optional<DraftTree> safe = nb::cast<const DraftTree&>(self).fit(root, nodes, depth, vocab_size);
             return safe ? nb::cast(std::move(*safe)) : self;
           },
           "root"_a, nb::kw_only(), "nodes"_a, "depth"_a, "vocab_size"_a)
      .def("likely_first", &DraftTree::likely_first)
      .def("named",
           [](nb::object self, const std::string& name) {
             const auto& tree = nb::cast<const DraftTree&>(self);
             return tree.size() == 1 || (!tree.origins().empty() && !tree.chances().empty()) ? self : nb::cast(tree.named(name));
           },
           "name"_a);
  m.def("merge",
        [](nb::object first, nb::object second, int nodes) {
          std::optional<DraftTree> merged;
          const int which = merge(nb::cast<const DraftTree&>(first), nb::cast<const DraftTree&>(second), nodes, merged);
          return which == 1 ? first : which == 2 ? second : nb::cast(std::move(*merged));
        },
        "first"_a, "second"_a, "nodes"_a);
  m.def("likely_leaf", &likely_leaf, "tree"_a);
}

}  // namespace

void bind_decoding(nb::module_& m) {
  bind_tree(m);
  nb::class_<CostCurve>(m, "CostCurve")
      .def(nb::init<const std::map<int, double>&, int>(), "points"_a, "most"_a = 64)
      .def_prop_ro("most", &CostCurve::most)
      .def("__call__", &CostCurve::operator(), "n"_a)
      .def("saw", &CostCurve::saw, "n"_a, "seconds"_a);
  nb::class_<Account>(m, "Account")
      .def(nb::init<bool>(), "promising"_a)
      .def_prop_ro("levels",
                   [](const Account& self) {
                     std::map<int, std::vector<std::tuple<double, double, int64_t>>> levels;
                     for (const auto& [promise, depths] : self.levels())
                       for (const Level& level : depths) levels[promise].emplace_back(level.gain, level.seconds, level.seen);
                     return levels;
                   })
      .def_prop_ro("nodes", [](const Account& self) { return self.nodes; });
  nb::class_<Pace>(m, "Pace")
      .def(nb::init<std::shared_ptr<Account>, double>(), "account"_a, "plain"_a)
      .def_prop_ro("hopeful", &Pace::hopeful)
      .def("ask",
           [](Pace& self, double price, int nodes, int depth, const DraftTree* beside) -> std::optional<std::pair<int, int>> {
             const std::optional<Pace::Asked> asked = self.ask(price, nodes, depth, beside);
             if (!asked) return std::nullopt;
             return std::make_pair(asked->nodes, asked->depth);
           },
           "price"_a, "nodes"_a, "depth"_a, "beside"_a.none())
      .def("gained", &Pace::gained, "gains"_a, "nodes"_a, "seconds"_a)
      .def("passed", &Pace::passed, "price"_a, "seconds"_a, "right"_a);
  nb::class_<Judged>(m, "Judged")
      .def_prop_ro("chances", [](const Judged& self) { return self.chances; })
      .def("worth_most", [](const Judged& self, const CostCurve& curve, double price) { return worth_most(self, {curve, price}); }, "curve"_a,
           "price"_a)
      .def("worth",
           [](const Judged& self, const std::vector<int32_t>& kept, const CostCurve& curve, double price) { return worth(self, kept, {curve, price}); },
           "kept"_a, "curve"_a, "price"_a)
      .def("part_of",
           [](const Judged& self, const std::string& name, const std::vector<int32_t>& kept, const CostCurve& curve, double price, double without) {
             const Part part = part_of(name, self, kept, {curve, price}, without);
             return std::make_pair(part.gains, part.nodes);
           },
           "name"_a, "kept"_a, "curve"_a, "price"_a, "without"_a);
  nb::class_<Records>(m, "Records")
      .def(nb::init<double>(), "reliance"_a = 1.0)
      .def_prop_ro("reliance", &Records::reliance)
      .def("begin", &Records::begin)
      .def("judge", &Records::judge, "tree"_a)
      .def("learn",
           [](Records& self, const Judged& judged, const std::vector<int32_t>& tokens) -> std::optional<std::string> {
             const std::vector<int32_t> path = self.learn(judged, tokens);
             return path.empty() ? std::nullopt : std::make_optional(judged.tree.origin(path[0]));
           },
           "judged"_a, "tokens"_a);
}

}  // namespace forerun
