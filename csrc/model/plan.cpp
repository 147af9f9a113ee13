#include "model/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

namespace forerun {
namespace {

constexpr size_t kMostTails = size_t(1) << 26;

void refuse(const std::string& why) { throw std::invalid_argument("forward: " + why); }

void check(const DecoderShape& shape, const Batch& batch) {
  const size_t rows = batch.tokens.size();
  if (batch.parents.size() != rows || batch.owners.size() != rows) refuse("arrays of different lengths");
  if (rows < 1) refuse("no rows");
  if (rows > kMostRows) refuse("too many rows");
  std::vector<int> counts(batch.caches.size(), 0);
  for (const Cache* cache : batch.caches)
    if (cache->layers() != shape.layers || cache->kv_heads() != shape.kv_heads || cache->head_dim() != shape.head_dim)
      refuse("a cache of another model");
  if (batch.continues && batch.caches.size() != 1) refuse("only rows of one cache can continue a stage");
  const int staged = batch.continues ? batch.caches[0]->staged() : 0;
  for (int i = 0; i < batch.rows(); i++) {
    const int owner = batch.owners[i], parent = batch.parents[i];
    if (batch.tokens[i] < 0 || batch.tokens[i] >= shape.vocab)
      refuse("token " + std::to_string(batch.tokens[i]) + " is outside the vocabulary");
    if (owner < 0 || owner >= static_cast<int>(batch.caches.size())) refuse("a row names no cache");
    if (i > 0 && owner < batch.owners[i - 1]) refuse("rows of one cache must be adjacent");
    if (parent < -1 || parent >= staged + i || (parent >= 0 && !batch.continues && batch.owners[parent] != owner))
      refuse("a row's parent is not before it");
    counts[owner]++;
  }
  for (size_t c = 0; c < batch.caches.size(); c++)
    if (counts[c] > batch.caches[c]->room() - staged) refuse("more rows than the cache has room for");
  if (batch.logits.size() > rows) refuse("logits of more rows than there are");
  for (int row : batch.logits)
    if (row < 0 || row >= batch.rows()) refuse("logits of a row that is not there");
  if (batch.taps.size() > static_cast<size_t>(shape.layers) + 1) refuse("more hidden states than there are");
  for (int tap : batch.taps)
    if (tap < 0 || tap > shape.layers) refuse("no hidden state " + std::to_string(tap));
}

}  // namespace

// The parents of a cache's whole stage once rows [begin, end) of the batch are in it.
static std::vector<int32_t> stage_parents(const Batch& batch, int begin, int end) {
  std::vector<int32_t> parents;
  if (batch.continues) parents = batch.caches[0]->parents();
  for (int i = begin; i < end; i++) parents.push_back(batch.parents[i] < 0 || batch.continues ? batch.parents[i] : batch.parents[i] - begin);
  return parents;
}

Plan make_plan(const DecoderShape& shape, const Batch& batch) {
  check(shape, batch);
  Plan plan;
  plan.rows.resize(batch.tokens.size());
  std::vector<int32_t> path, positions;
  for (int begin = 0; begin < batch.rows();) {
    Cache* cache = batch.caches[batch.owners[begin]];
    const int length = cache->length();
    int end = begin;
    while (end < batch.rows() && batch.owners[end] == batch.owners[begin]) end++;
    const std::vector<int32_t> parents = stage_parents(batch, begin, end);
    const int staged = static_cast<int>(parents.size()), before = staged - (end - begin);
    positions.resize(parents.size());
    int first_tail = staged, last_tail = 0;
    for (int s = 0; s < staged; s++) {
      positions[s] = parents[s] < 0 ? length : positions[parents[s]] + 1;
      if (s < before) continue;
      RowPlan& row = plan.rows[begin + s - before];
      row.cache = cache;
      row.position = positions[s];
      if (row.position >= cache->capacity()) refuse("position " + std::to_string(row.position) + " is beyond the cache's capacity");
      row.slot = length + s;
      row.tail = plan.tails.size();
      // A row as deep as it is far from the stage's first row has all rows between as ancestors: they lie in place.
      path.clear();
      for (int at = s; at >= 0 && positions[at] != length + at; at = parents[at]) {
        path.push_back(length + at);
        first_tail = std::min(first_tail, at);
        last_tail = std::max(last_tail, at);
      }
      row.prefix = row.position + 1 - static_cast<int>(path.size());
      if (plan.tails.size() + path.size() > kMostTails) refuse("a tree too deep and too wide");
      plan.tails.insert(plan.tails.end(), path.rbegin(), path.rend());
    }
    if (last_tail >= first_tail)
      plan.tail_blocks = std::max(plan.tail_blocks, (length + last_tail) / kKeyBlock - (length + first_tail) / kKeyBlock + 1);
    const int per_kv = shape.heads / shape.kv_heads, queries = (end - begin) * per_kv;
    const int64_t groups = (queries + kMaxQueries - 1) / kMaxQueries;
    for (int64_t g = 0; g < groups; g++) {
      QueryGroup group{begin, static_cast<int>(queries * g / groups), static_cast<int>(queries * (g + 1) / groups), 1};
      for (int i = group.begin / per_kv; i <= (group.end - 1) / per_kv; i++)
        group.chunks = std::max(group.chunks, plan.rows[begin + i].position / kChunk + 1);
      plan.runs = std::max(plan.runs, run_of(group.chunks - 1) + 1);
      plan.groups.push_back(group);
    }
    begin = end;
  }
  return plan;
}

void stage_rows(const Batch& batch) {
  std::vector<std::pair<Cache*, std::vector<int32_t>>> stages;
  for (int begin = 0, end; begin < batch.rows(); begin = end) {
    for (end = begin; end < batch.rows() && batch.owners[end] == batch.owners[begin];) end++;
    stages.emplace_back(batch.caches[batch.owners[begin]], stage_parents(batch, begin, end));
  }
  for (auto& [cache, parents] : stages) cache->stage(std::move(parents));
}

}  // namespace forerun
