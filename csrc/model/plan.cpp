#include "model/plan.h"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace forerun {
namespace {

void refuse(const std::string& why) { throw std::invalid_argument("forward: " + why); }

void check(const DecoderShape& shape, const Batch& batch) {
  if (batch.rows < 1) refuse("no rows");
  std::vector<int> counts(batch.caches.size(), 0);
  for (const Cache* cache : batch.caches)
    if (cache->layers() != shape.layers || cache->kv_heads() != shape.kv_heads || cache->head_dim() != shape.head_dim)
      refuse("a cache of another model");
  for (size_t a = 0; a < batch.caches.size(); a++)
    for (size_t b = 0; b < a; b++)
      if (batch.caches[a] == batch.caches[b]) refuse("a cache is named twice");
  for (int i = 0; i < batch.rows; i++) {
    const int owner = batch.owners[i], parent = batch.parents[i];
    if (batch.tokens[i] < 0 || batch.tokens[i] >= shape.vocab)
      refuse("token " + std::to_string(batch.tokens[i]) + " is outside the vocabulary");
    if (owner < 0 || owner >= static_cast<int>(batch.caches.size())) refuse("a row names no cache");
    if (i > 0 && owner < batch.owners[i - 1]) refuse("rows of one cache must be adjacent");
    if (parent < -1 || parent >= i || (parent >= 0 && batch.owners[parent] != owner)) refuse("a row's parent is not before it");
    counts[owner]++;
  }
  for (size_t c = 0; c < batch.caches.size(); c++)
    if (counts[c] > batch.caches[c]->room()) refuse("more rows than the cache has room for");
  if (batch.logits.size() > static_cast<size_t>(batch.rows)) refuse("logits of more rows than there are");
  for (int row : batch.logits)
    if (row < 0 || row >= batch.rows) refuse("logits of a row that is not there");
  for (int tap : batch.taps)
    if (tap < 0 || tap > shape.layers) refuse("no hidden state " + std::to_string(tap));
}

}  // namespace

Plan make_plan(const DecoderShape& shape, const Batch& batch) {
  check(shape, batch);
  Plan plan;
  plan.rows.resize(batch.rows);
  std::vector<int32_t> path;
  for (int begin = 0; begin < batch.rows;) {
    Cache* cache = batch.caches[batch.owners[begin]];
    const int length = cache->length();
    int end = begin;
    while (end < batch.rows && batch.owners[end] == batch.owners[begin]) end++;
    int first_tail = end, last_tail = begin;
    for (int i = begin; i < end; i++) {
      RowPlan& row = plan.rows[i];
      const int parent = batch.parents[i];
      row.cache = cache;
      row.position = parent < 0 ? length : plan.rows[parent].position + 1;
      if (row.position >= cache->capacity()) refuse("position " + std::to_string(row.position) + " is beyond the cache's capacity");
      row.slot = length + (i - begin);
      row.tail = plan.tails.size();
      // A row as deep as it is far from the stage's first row has all rows between as ancestors: they lie in place.
      path.clear();
      for (int at = i; at >= 0 && plan.rows[at].position != plan.rows[at].slot; at = batch.parents[at]) {
        path.push_back(plan.rows[at].slot);
        first_tail = std::min(first_tail, at);
        last_tail = std::max(last_tail, at);
      }
      row.prefix = row.position + 1 - static_cast<int>(path.size());
      plan.tails.insert(plan.tails.end(), path.rbegin(), path.rend());
    }
    if (last_tail >= first_tail)
      plan.tail_blocks = std::max(plan.tail_blocks, (length + last_tail - begin) / kKeyBlock - (length + first_tail - begin) / kKeyBlock + 1);
    const int per_kv = shape.heads / shape.kv_heads, queries = (end - begin) * per_kv;
    for (int q = 0; q < queries; q += kMaxQueries) {
      QueryGroup group{begin, q, std::min(queries, q + kMaxQueries), 1};
      for (int i = q / per_kv; i <= (group.end - 1) / per_kv; i++)
        group.chunks = std::max(group.chunks, plan.rows[begin + i].position / kChunk + 1);
      plan.chunks = std::max(plan.chunks, group.chunks);
      plan.groups.push_back(group);
    }
    begin = end;
  }
  for (int begin = 0; begin < batch.rows;) {
    int end = begin;
    std::vector<int32_t> parents;
    for (; end < batch.rows && batch.owners[end] == batch.owners[begin]; end++)
      parents.push_back(batch.parents[end] < 0 ? -1 : batch.parents[end] - begin);
    batch.caches[batch.owners[begin]]->stage(std::move(parents));
    begin = end;
  }
  return plan;
}

}  // namespace forerun
