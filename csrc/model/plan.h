// What a forward is about to do, worked out and checked before any thread starts.
#pragma once
#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "model/decoder.h"

namespace forerun {

// Where a row stands and what it sees. Positions below `prefix` lie in the slots of the same number; the rest of its path
// lies in tails[tail ..].
struct RowPlan {
  Cache* cache;
  int position, slot, prefix;
  size_t tail;
};

// Up to kMaxQueries neighbouring queries of one cache; query i of a key-value head belongs to row first_row + i / heads_per_kv.
// All groups of a cache have about as many.
struct QueryGroup {
  int first_row;  // of the cache's rows
  int begin, end;
  int chunks;     // chunks that its longest row sees
};

struct Plan {
  std::vector<RowPlan> rows;
  std::vector<int32_t> tails;
  std::vector<QueryGroup> groups;
  int tail_blocks = 1;  // blocks of slots that the tails of one cache span at most
  int runs = 1;         // the most runs of chunks that any row sees
};

// Checks the batch against the model's shape and the caches. Throws std::invalid_argument when they do not fit.
Plan make_plan(const DecoderShape& shape, const Batch& batch);

// Stages the rows of a batch that was checked. Throws std::bad_alloc before anything is staged.
void stage_rows(const Batch& batch);

}  // namespace forerun
