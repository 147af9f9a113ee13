#include "drafting/text_vocabulary.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace forerun {

TextVocabulary::TextVocabulary(std::shared_ptr<const TargetRows> rows, const std::vector<int32_t>& own) : rows_(std::move(rows)) {
  if (rows_ == nullptr) return;
  const Linear& from = rows_->from.view();
  if (rows_->from.empty() || from.bias != nullptr || rows_->most < 1) throw std::invalid_argument("text vocabulary: rows that cannot be taken");
  rare_.assign(static_cast<size_t>(from.outputs), true);
  for (const int32_t token : own)
    if (token >= 0 && token < from.outputs) rare_[static_cast<size_t>(token)] = false;
}

bool TextVocabulary::follow(const std::vector<int32_t>& text) {
  if (rows_ == nullptr) return false;
  for (; read_ < static_cast<int>(text.size()); read_++) {
    const int32_t token = text[static_cast<size_t>(read_)];
    if (token >= 0 && static_cast<size_t>(token) < rare_.size() && rare_[static_cast<size_t>(token)]) see(token);
  }
  return std::exchange(changed_, false);
}

// A new token gets the next place, or the one of the token that the text had longest ago.
void TextVocabulary::see(int32_t token) {
  const auto known = places_.find(token);
  if (known != places_.end()) {
    seen_[static_cast<size_t>(known->second)] = read_;
    return;
  }
  changed_ = true;
  size_t place = tokens_.size();
  if (place < static_cast<size_t>(rows_->most)) {
    tokens_.push_back(token);
    seen_.push_back(read_);
  } else {
    place = static_cast<size_t>(std::min_element(seen_.begin(), seen_.end()) - seen_.begin());
    places_.erase(tokens_[place]);
    tokens_[place] = token;
    seen_[place] = read_;
  }
  places_[token] = static_cast<int>(place);
}

void TextVocabulary::truncate(int length) {
  if (length >= read_) return;
  tokens_.clear();  // what was before is read again; rows that were taken stay
  seen_.clear();
  places_.clear();
  read_ = 0;
  changed_ = true;
}

Linear TextVocabulary::outputs() {
  if (tokens_.empty()) return {};
  if (packed_.empty()) {
    const int room = (rows_->most + kTile - 1) / kTile * kTile, inputs = rows_->from.view().inputs;
    packed_ = PackedLinear(std::make_shared<Arena>(0), SourceKind::F32, rows_->format, room, inputs);
    taken_.assign(static_cast<size_t>(room), -1);
  }
  for (int tile = 0; tile < tiles(); tile++) {
    const long begin = static_cast<long>(tile) * kTile, end = std::min<long>(begin + kTile, static_cast<long>(tokens_.size()));
    if (!std::equal(tokens_.begin() + begin, tokens_.begin() + end, taken_.begin() + begin)) take(tile);
  }
  Linear outputs = packed_.view();
  outputs.outputs = static_cast<int>(tokens_.size());
  outputs.tiles = tiles();
  return outputs;
}

// Of the last tile what is left over is filled with the last token.
void TextVocabulary::take(int tile) {
  for (size_t i = static_cast<size_t>(tile) * kTile, end = i + kTile; i < end; i++) taken_[i] = tokens_[std::min(i, tokens_.size() - 1)];
  packed_.take_tiles(rows_->from, taken_.data(), tile, tile + 1);
}

}  // namespace forerun
