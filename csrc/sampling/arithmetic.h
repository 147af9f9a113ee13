// Logarithm and exponential by the recipe of sampling/arithmetic.py, to the bit: each operation rounded on its own, in
// the order written.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/choice.h"

namespace forerun {

// Natural logarithm of a positive, normal x.
inline double natural_log(double x) {
  uint64_t bits;
  std::memcpy(&bits, &x, 8);
  int exponent = static_cast<int>(bits >> 52) - 1022;
  bits = (bits & 0xfffffffffffffull) | (1022ull << 52);
  double mantissa;
  std::memcpy(&mantissa, &bits, 8);  // in [0.5, 1)
  if (mantissa < kSqrtHalf) {
    mantissa *= 2.0;
    exponent--;
  }
  const double f = (mantissa - 1.0) / (mantissa + 1.0), z = f * f;
  double p = 1.0 / 21.0;
  for (int odd = 19; odd >= 3; odd -= 2) p = p * z + 1.0 / odd;
  return exponent * kLn2 + 2.0 * (f + f * (z * p));
}

// Exponential of x <= 0; 0 below kLeastExponent.
inline double exponential(double x) {
  if (x < kLeastExponent) return 0.0;
  const double k = std::floor(x * kLog2E + 0.5), r = (x - k * kLn2High) - k * kLn2Low;
  double p = kExpTerms[0];
  for (int i = 1; i < 13; i++) p = p * r + kExpTerms[i];
  uint64_t bits;
  std::memcpy(&bits, &p, 8);
  bits += static_cast<uint64_t>(static_cast<int64_t>(k)) << 52;  // stays normal: k >= -1021
  std::memcpy(&p, &bits, 8);
  return p;
}

// Lane j adds x[j], x[j + 8], ...; then the lanes are added in pairs.
inline double lane_sum(const double* x, int n) {
  double lanes[8] = {};
  int i = 0;
  for (; i + 8 <= n; i += 8)
    for (int j = 0; j < 8; j++) lanes[j] += x[i + j];
  for (int j = 0; i + j < n; j++) lanes[j] += x[i + j];
  return ((lanes[0] + lanes[1]) + (lanes[2] + lanes[3])) + ((lanes[4] + lanes[5]) + (lanes[6] + lanes[7]));
}

}  // namespace forerun
