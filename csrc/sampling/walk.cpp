#include "sampling/walk.h"

#include <stdexcept>

namespace forerun {

Walk walk(Chooser& chooser, Rule rule, const DraftTree& tree, const float* logits, size_t stride, const int32_t* history, int length) {
  for (const int32_t token : tree.tokens())
    if (token < 0 || token >= chooser.vocab()) throw std::invalid_argument("a tree's token outside the vocabulary");
  Walk done;
  std::vector<int32_t> text, guesses, children;  // from the root to the node; and below it
  for (int node = 0; node >= 0;) {
    text.push_back(tree.tokens()[static_cast<size_t>(node)]);
    guesses.clear();
    children.clear();
    for (int other = node + 1; other < tree.size(); other++) {
      if (tree.parents()[static_cast<size_t>(other)] != node) continue;
      children.push_back(other);
      guesses.push_back(tree.tokens()[static_cast<size_t>(other)]);
    }
    const Text before{history, length, text.data(), static_cast<int>(text.size())};
    const float* row = logits + static_cast<size_t>(node) * stride;
    int token;
    if (rule == Rule::coupled) {
      token = chooser.choose(row, before, nullptr);
    } else {
      const auto drawn = tree.proposals().find(node);
      const double* proposal = drawn == tree.proposals().end() ? nullptr : drawn->second.shares.get();
      if (proposal != nullptr && drawn->second.size != static_cast<size_t>(chooser.vocab()))
        throw std::invalid_argument("a proposal over another vocabulary");
      token = chooser.choose_by_rejection(row, before, nullptr, guesses, proposal);
    }
    if (token < 0) {
      if (node == 0) done.wrong = token;
      break;
    }
    done.path.push_back(node);
    done.tokens.push_back(token);
    done.checked += !children.empty();
    node = -1;
    for (size_t i = guesses.size(); i-- > 0;)
      if (guesses[i] == token) node = children[i];
  }
  return done;
}

}  // namespace forerun
