// The rejection rule itself, to the bit as sampling/rules.py has it.
#pragma once
#include <cstdint>
#include <vector>

namespace forerun {

// left: the target's distribution; spoilt. candidates: ids within it. proposal: as long, or null. source: scratch.
int reject(std::vector<double>& left, const std::vector<int32_t>& candidates, const double* proposal, std::vector<double>& source,
           uint64_t seed, uint32_t position);

}  // namespace forerun
