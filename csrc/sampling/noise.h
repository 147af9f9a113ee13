// Gumbel noise by the recipe of sampling/noise.py, to the bit: Philox4x32-10, in groups of 64 tokens from the least
// exponential up.
#pragma once
#include <array>
#include <cstdint>

#include "sampling/arithmetic.h"

namespace forerun {

constexpr uint32_t kDraftStream = 2;  // beside those of kernels/choice.h

// Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011: the four words of one counter.
inline std::array<uint32_t, 4> philox(uint64_t seed, uint32_t index, uint32_t position, uint32_t stream) {
  uint32_t c0 = index, c1 = position, c2 = stream, c3 = 0;
  uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; round++) {
    const uint64_t a = uint64_t(c0) * kPhiloxMultiply0, b = uint64_t(c2) * kPhiloxMultiply2;
    c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
    c1 = static_cast<uint32_t>(b);
    c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
    c3 = static_cast<uint32_t>(a);
    k0 += kPhiloxWeyl0;
    k1 += kPhiloxWeyl1;
  }
  return {c0, c1, c2, c3};
}

inline double uniform_noise(uint32_t word) { return (word + 0.5) * 0x1p-32; }
inline double exponential_noise(uint32_t word) { return -natural_log(uniform_noise(word)); }

// What a group's two words say: the least exponential noise in the group, and who has it.
inline double least_noise(uint32_t word) { return exponential_noise(word) / kBlock; }
inline int holder(uint32_t word) { return static_cast<int>(word % kBlock); }

// A token's noise, given its group's.
inline double gumbel_noise(uint64_t seed, uint32_t position, int token, double least, int holder) {
  if (token % kBlock == holder) return -natural_log(least);
  const uint32_t word = philox(seed, static_cast<uint32_t>(token) / 4, position, kGumbelStream)[token % 4];
  return -natural_log(least + exponential_noise(word));
}

}  // namespace forerun
