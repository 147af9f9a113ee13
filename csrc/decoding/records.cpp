#include "decoding/records.h"

#include <algorithm>

namespace forerun {
namespace {

constexpr double kMemory = 0.97;                 // how much of a record stays when an outcome is added
constexpr double kTrust = 8.0;                   // outcomes that the drafter's own opinion is worth
constexpr double kNoOpinion = 0.4, kDoubt = 2.0; // the chance of a guess that the drafter says nothing about; its worth in outcomes
constexpr double kCarried = 16.0;                // outcomes that what earlier texts taught is worth when a text begins
// How much a drafter must have promised for what came of it to count as much as what was thought before; and how much of
// that stays when an outcome is added.
constexpr double kFirm = 4.0, kKept = 0.99;

}  // namespace

void Records::begin() {
  for (auto& [kind, record] : records_) {
    const double part = std::min(1.0, kCarried / record.seen);
    record.right *= part;
    record.seen *= part;
  }
}

Judged Records::judge(const DraftTree& tree) const {
  const bool opinions = tree.proposals().empty() && !tree.chances().empty();
  const std::vector<int32_t> depths = tree.depths();
  Judged judged{tree, {{"", 0}}, {1.0}, {1.0}};
  for (size_t node = 1; node < depths.size(); node++) {
    const auto parent = static_cast<size_t>(tree.parents()[node]);
    const std::string& name = tree.origin(static_cast<int>(node));
    double opinion = kNoOpinion, trust = kDoubt;
    int sort = -depths[node];
    if (opinions) {
      opinion = tree.chances()[node] / std::max(tree.chances()[parent], 1e-9);
      trust = kTrust;
      sort = static_cast<int>(std::min(10.0 * opinion, 10.0));
    }
    const auto promise = promises_.find(name);
    const double kept = promise == promises_.end() ? reliance_ : promise->second.right / promise->second.said;
    double chance = std::min(opinion * kept, 1.0);
    judged.kinds.emplace_back(name, sort);
    const auto record = records_.find(judged.kinds.back());
    if (record != records_.end()) chance = (record->second.right + trust * chance) / (record->second.seen + trust);
    judged.said.push_back(opinion);
    judged.chances.push_back(judged.chances[parent] * chance);
  }
  return judged;
}

std::vector<int32_t> Records::learn(const Judged& judged, const std::vector<int32_t>& tokens) {
  std::vector<int32_t> path;
  int node = 0;
  for (const int32_t token : tokens) {
    const int right = judged.tree.child(node, token);
    for (int child = node + 1; child < judged.tree.size(); child++)
      if (judged.tree.parents()[static_cast<size_t>(child)] == node)
        add(judged.kinds[static_cast<size_t>(child)], judged.said[static_cast<size_t>(child)], child == right);
    if (right < 0) break;
    node = right;
    path.push_back(node);
  }
  return path;
}

void Records::add(const Kind& kind, double said, bool right) {
  Record& record = records_[kind];
  record.right = kMemory * record.right + right;
  record.seen = kMemory * record.seen + 1.0;
  Promise& promise = promises_.try_emplace(kind.first, Promise{kFirm * reliance_, kFirm}).first->second;
  promise.right = kKept * promise.right + right;
  promise.said = kKept * promise.said + said;
}

}  // namespace forerun
