#include "sampling/processor.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace forerun {
namespace {

bool bit(const uint32_t* words, int token) { return (words[token / 32] >> (token % 32)) & 1u; }

// Removes tokens from a set of bits, which is all of the vocabulary where it is empty.
void remove(std::vector<uint32_t>& words, const std::vector<int32_t>& tokens, int vocab) {
  if (words.empty() && !tokens.empty()) words.assign(static_cast<size_t>(vocab + 31) / 32, ~0u);
  for (int32_t token : tokens) words[static_cast<size_t>(token) / 32] &= ~(1u << (token % 32));
}

void check(const std::vector<int32_t>& tokens, int vocab) {
  for (int32_t token : tokens)
    if (token < 0 || token >= vocab) throw std::invalid_argument("a token id outside the vocabulary");
}

int checked_vocab(const ProcessorSettings& s) {
  if (s.vocab < 1 || s.bias.size() != s.bias_tokens.size()) throw std::invalid_argument("sampling settings do not fit together");
  check(s.bias_tokens, s.vocab);
  check(s.forbidden, s.vocab);
  check(s.end_tokens, s.vocab);
  return s.vocab;
}

}  // namespace

Processor::Processor(ProcessorSettings settings, const Kernels* kernels)
    : settings_(std::move(settings)), kernels_(kernels), history_(checked_vocab(settings_), settings_.prompt_length) {
  remove(allowed_, settings_.forbidden, settings_.vocab);
  allowed_early_ = allowed_;
  remove(allowed_early_, settings_.end_tokens, settings_.vocab);
}

const float* Processor::operator()(const float* logits, const Text& text, const uint32_t* allowed) {
  if (settings_.counts_history) history_.set(text.history, text.history_length, text.path, text.path_length);
  const bool early = std::max(text.length() - settings_.prompt_length, 0) < settings_.min_tokens;
  const uint32_t* mask = this->mask(early, allowed);
  if (mask == nullptr && settings_.bias.empty() && !settings_.counts_history) return logits;
  const auto vocab = static_cast<size_t>(settings_.vocab);
  row_.resize(vocab);
  if (mask != nullptr)
    kernels_->copy_allowed(logits, settings_.vocab, mask, row_.data());
  else
    std::memcpy(row_.data(), logits, vocab * sizeof(float));
  for (size_t i = 0; i < settings_.bias.size(); i++) {
    const int32_t token = settings_.bias_tokens[i];
    if (mask == nullptr || bit(mask, token)) row_[static_cast<size_t>(token)] += settings_.bias[i];
  }
  if (settings_.counts_history) penalise(mask);
  return row_.data();
}

// What is forbidden here is left out by all that follows: bits, or null where nothing is.
const uint32_t* Processor::mask(bool early, const uint32_t* allowed) {
  const std::vector<uint32_t>& own = early ? allowed_early_ : allowed_;
  if (own.empty()) return allowed;
  if (allowed == nullptr) return own.data();
  both_.resize(own.size());
  for (size_t i = 0; i < own.size(); i++) both_[i] = own[i] & allowed[i];
  return both_.data();
}

void Processor::penalise(const uint32_t* mask) {
  float* row = row_.data();
  const float repetition = settings_.repetition, presence = settings_.presence, frequency = settings_.frequency;
  if (repetition != 1.0f)
    for (int32_t token : history_.seen()) {
      const float x = row[token], punished = x < 0 ? x * repetition : x / repetition;
      if (mask == nullptr || bit(mask, token)) row[token] = punished;
    }
  if (presence != 0.0f || frequency != 0.0f)
    for (int32_t token : history_.used()) {
      const float x = row[token], punished = x - frequency * static_cast<float>(history_.count(token)) - presence;
      if (mask == nullptr || bit(mask, token)) row[token] = punished;
    }
}

}  // namespace forerun
