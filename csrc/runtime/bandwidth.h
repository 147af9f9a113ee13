// How fast this machine reads memory.
#pragma once
#include <cstddef>

#include "runtime/threads.h"

namespace forerun {

// Bytes per second that the team reads from a buffer much larger than the caches: the best of `repeats` passes.
// Throws std::bad_alloc without room for the buffer.
double read_bandwidth(Team& team, size_t bytes, int repeats);

}  // namespace forerun
