// The rejection rule itself, and the draws it judges, to the bit as sampling/rules.py and ranking.py have them.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace forerun {

// left: the target's distribution; spoilt. candidates: ids within it. proposal: as long, or null. source: scratch.
int reject(std::vector<double>& left, const std::vector<int32_t>& candidates, const double* proposal, std::vector<double>& source,
           uint64_t seed, uint32_t position);

// At most `count` tokens drawn without replacement, in that order. left: what they are drawn from; spoilt. serial: tells
// draws at the same position apart.
std::vector<int32_t> draw_few(std::vector<double>& left, size_t count, uint64_t seed, uint32_t position, uint32_t serial);

}  // namespace forerun
