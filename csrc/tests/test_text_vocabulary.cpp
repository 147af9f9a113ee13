// The tokens of a text that a head lacks, over random texts (for the sanitizers too): which they are, and that their rows are
// the target's.
#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <vector>

#include "check.h"
#include "drafting/text_vocabulary.h"

using namespace forerun;

namespace {

constexpr int kVocab = 90, kInputs = 40;

Checks check;
std::mt19937 random_bits(3);

int below(int bound) { return static_cast<int>(random_bits() % static_cast<unsigned>(bound)); }

PackedLinear random_rows() {
  std::vector<float> weights(static_cast<size_t>(kVocab) * kInputs);
  std::normal_distribution<float> normal;
  for (float& weight : weights) weight = normal(random_bits);
  const Source source{SourceKind::F32, reinterpret_cast<const uint8_t*>(weights.data()), weights.size() * sizeof(float)};
  return pack(std::make_shared<Arena>(), source, Format::f32, kVocab, kInputs);
}

// The last `most` different tokens of a text that are not among `own`.
std::set<int32_t> last_rare(const std::vector<int32_t>& text, const std::vector<int32_t>& own, int most) {
  std::set<int32_t> found;
  for (size_t i = text.size(); i-- > 0 && static_cast<int>(found.size()) < most;)
    if (std::find(own.begin(), own.end(), text[i]) == own.end()) found.insert(text[i]);
  return found;
}

// Output i of the tiles is token i's row, by a product with each input alone.
void are_rows(TextVocabulary& vocabulary, const PackedLinear& from) {
  const Linear outputs = vocabulary.outputs();
  check(outputs.outputs == static_cast<int>(vocabulary.tokens().size()) && outputs.tiles == vocabulary.tiles(), "another number of outputs");
  std::vector<float> row(kInputs);
  for (int i = 0; i < outputs.outputs; i++) {
    from.unpack_row(vocabulary.tokens()[static_cast<size_t>(i)], row.data());
    const float* tile = reinterpret_cast<const float*>(outputs.data + static_cast<size_t>(i / kTile) * outputs.tile_bytes);
    for (int k = 0; k < kInputs; k++) check(tile[k * kTile + i % kTile] == row[static_cast<size_t>(k)], "another row");
  }
}

void follows(const PackedLinear& from, int most) {
  std::vector<int32_t> own;
  for (int token = 0; token < kVocab; token += 1 + below(4)) own.push_back(token);
  const auto rows = std::make_shared<TargetRows>(TargetRows{from, Format::f32, most});
  TextVocabulary vocabulary(rows, own);
  check(vocabulary.outputs().tiles == 0, "outputs before a text");
  std::vector<int32_t> text;
  for (int step = 0; step < 60; step++) {
    for (int i = below(6); i > 0; i--) text.push_back(below(kVocab + 3) - 1);  // heads may be asked about more than there is
    if (below(7) == 0) {
      text.resize(text.size() - static_cast<size_t>(below(static_cast<int>(text.size()) + 1)));
      vocabulary.truncate(static_cast<int>(text.size()));
    }
    const std::vector<int32_t> before = vocabulary.tokens();
    const bool changed = vocabulary.follow(text);
    check(changed || vocabulary.tokens() == before, "a change that is not told");
    std::vector<int32_t> meant;
    for (const int32_t token : text)
      if (token >= 0 && token < kVocab) meant.push_back(token);
    const std::set<int32_t> said(vocabulary.tokens().begin(), vocabulary.tokens().end());
    check(said.size() == vocabulary.tokens().size() && said == last_rare(meant, own, most), "other tokens than the text's");
    TextVocabulary anew(rows, own);
    anew.follow(text);
    check(anew.tokens() == vocabulary.tokens(), "not a function of the text alone");
    if (below(3) > 0) are_rows(vocabulary, from);
  }
}

}  // namespace

int main() {
  const PackedLinear from = random_rows();
  for (int most = 1; most < 60; most += 1 + below(5)) follows(from, most);
  TextVocabulary nothing(nullptr, {1, 2});
  check(!nothing.follow({5, 6}) && nothing.tokens().empty() && nothing.outputs().tiles == 0, "tokens without rows");
  check.refuses<std::invalid_argument>("cannot be taken", [&] { TextVocabulary(std::make_shared<TargetRows>(TargetRows{from, Format::f32, 0}), {}); });
  check.refuses<std::invalid_argument>("cannot be taken", [&] { TextVocabulary(std::make_shared<TargetRows>(TargetRows{{}, Format::f32, 4}), {}); });
  return check.finish();
}
