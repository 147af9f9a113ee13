// The suffix automaton against a search of the text, and its drafts over texts of every kind (for the sanitizers).
#include <algorithm>
#include <memory>
#include <random>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "drafting/suffix.h"

using namespace forerun;

namespace {

SuffixConstants constants(double least_chance) { return {2.5, 0.3, 8, 64, 8, 32, least_chance}; }

Checks check;

// The longest ending of `text` that also ends earlier.
int32_t longest_repeat(const std::vector<int32_t>& text) {
  const int n = static_cast<int>(text.size());
  int best = 0;
  for (int end = 1; end < n; end++) {
    int length = 0;
    while (length < end && text[static_cast<size_t>(end - 1 - length)] == text[static_cast<size_t>(n - 1 - length)]) length++;
    best = std::max(best, length);
  }
  return best;
}

void match_lengths(std::mt19937& random, int alphabet, int size) {
  SuffixIndex index;
  std::vector<int32_t> text;
  for (int i = 0; i < size; i++) {
    text.push_back(static_cast<int32_t>(random() % static_cast<unsigned>(alphabet)));
    index.extend(text.back());
    check(index.longest().length == longest_repeat(text), "a longest match is wrong");
  }
  check(index.tokens() == size, "tokens are miscounted");
}

void drafts(std::mt19937& random, int alphabet, int size) {
  const auto token = [&] { return static_cast<int32_t>(random() % static_cast<unsigned>(alphabet)) - alphabet / 3; };
  auto past = std::make_shared<SuffixIndex>();
  for (int i = 0; i < size / 2; i++) {
    past->extend(token());
    if (random() % 17 == 0) past->end_text();
  }
  SuffixDrafter drafter(past, constants(0.02));
  size_t length = 0;
  for (int step = 0; step < size; step++) {
    std::vector<int32_t> tokens(random() % 4), prefix(random() % 3);
    for (int32_t& t : tokens) t = token();
    for (int32_t& t : prefix) t = token();
    drafter.observe(tokens.data(), tokens.size());
    length += tokens.size();
    if (random() % 23 == 0) {
      length = std::min<size_t>(length, random() % (length + 1));
      drafter.truncate(length);
    }
    check(drafter.length() == length, "a text has another length than it should");
    const int nodes = static_cast<int>(random() % 20), depth = static_cast<int>(random() % 9);
    const Draft draft = drafter.propose(prefix.data(), prefix.size(), nodes, depth);
    check(draft.tokens.size() <= static_cast<size_t>(nodes), "a draft is larger than asked for");
    std::vector<int> depths(1, 0);
    float before = 1;
    for (size_t i = 0; i < draft.tokens.size(); i++) {
      check(draft.parents[i] >= 0 && draft.parents[i] <= static_cast<int32_t>(i), "a node comes before its parent");
      depths.push_back(depths[static_cast<size_t>(draft.parents[i])] + 1);
      check(depths.back() <= depth, "a draft is deeper than asked for");
      check(draft.chances[i] <= before && draft.chances[i] >= 0.0199f, "chances are out of order");
      before = draft.chances[i];
    }
  }
}

// A passage of which one token was replaced goes on after it.
void detour() {
  SuffixDrafter drafter(nullptr, constants(0.02));
  const std::vector<int32_t> text = {1, 2, 3, 4, 5, 6, 0, 1, 2, 3}, replaced = {9};
  drafter.observe(text.data(), text.size());
  const Draft draft = drafter.propose(replaced.data(), replaced.size(), 2, 2);
  check(draft.tokens == std::vector<int32_t>{5, 6}, "a passage does not go on after a token that differs");
}

}  // namespace

int main() {
  std::mt19937 random(1);
  for (int alphabet : {1, 2, 3, 40}) match_lengths(random, alphabet, 200);
  for (int alphabet : {1, 2, 3, 40, 50000})
    for (int size : {1, 10, 3000}) drafts(random, alphabet, size);
  detour();
  check.refuses<std::invalid_argument>("least chance", [] { SuffixDrafter(nullptr, constants(0.0)); });
  return check.finish();
}
