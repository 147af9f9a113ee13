// The drafting part of the Python module forerun._core.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <string>
#include <vector>

#include "drafting/suffix.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace forerun {

using Ints = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void bind_drafting(nb::module_& m) {
  nb::class_<SuffixIndex>(m, "SuffixIndex")
      .def(nb::init<>())
      .def("add_text",
           [](SuffixIndex& self, const Ints& tokens) {
             for (size_t i = 0; i < tokens.size(); i++) self.extend(tokens.data()[i]);
             self.end_text();
           },
           "tokens"_a)
      .def_prop_ro("tokens", &SuffixIndex::tokens)
      .def_prop_ro("bytes", &SuffixIndex::bytes);
  nb::class_<SuffixDrafter>(m, "SuffixDrafter")
      .def("__init__",
           [](SuffixDrafter* self, std::shared_ptr<SuffixIndex> past, double doubt, double shorter, double prior, double window,
              double recent, double span, double least_chance) {
             new (self) SuffixDrafter(std::move(past), {doubt, shorter, prior, window, recent, span, least_chance});
           },
           "past"_a.none(), "doubt"_a, "shorter"_a, "prior"_a, "window"_a, "recent"_a, "span"_a, "least_chance"_a)
      .def("observe", [](SuffixDrafter& self, const Ints& tokens) { self.observe(tokens.data(), tokens.size()); }, "tokens"_a)
      .def("observe", [](SuffixDrafter& self, const std::vector<int32_t>& tokens) { self.observe(tokens.data(), tokens.size()); }, "tokens"_a)
      .def("truncate", &SuffixDrafter::truncate, "length"_a)
      .def("propose",
           [](SuffixDrafter& self, int nodes, int depth) { return DraftTree(self.last(), self.propose(nullptr, 0, nodes, depth)); },
           "nodes"_a, "depth"_a, "A tree below the text's last token.")
      .def("extend",
           [](SuffixDrafter& self, const DraftTree& tree, int node, int nodes, int depth, const std::string& name) {
             std::vector<int32_t> prefix;
             for (const int32_t at : tree.path(node))
               if (at > 0) prefix.push_back(tree.tokens()[static_cast<size_t>(at)]);
             return tree.with(node, self.propose(prefix.data(), prefix.size(), nodes, depth), name);
           },
           "tree"_a, "node"_a, "nodes"_a, "depth"_a, "name"_a, "The tree with guesses below a node, by that name.")
      .def_prop_ro("length", &SuffixDrafter::length)
      .def_prop_ro("bytes", &SuffixDrafter::bytes);
}

}  // namespace forerun
