// What the kernels of choice.inl and the code in sampling/ agree on: constants only, so that files compiled for one
// instruction set may include it.
#pragma once
#include <cstdint>

namespace forerun {

constexpr int kBlock = 64;  // values of a row whose highest is kept; tokens whose noise is made together

// sampling/arithmetic.py
constexpr double kLn2 = 0.6931471805599453;
constexpr double kLn2High = 6.93147180369123816490e-01, kLn2Low = 1.90821492927058770002e-10;
constexpr double kLog2E = 1.4426950408889634;
constexpr double kSqrtHalf = 0.7071067811865476;
constexpr double kLeastExponent = -708.0;
constexpr double kExpTerms[13] = {1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0, 1.0 / 40320.0,
                                  1.0 / 5040.0,      1.0 / 720.0,      1.0 / 120.0,     1.0 / 24.0,     1.0 / 6.0,
                                  1.0 / 2.0,         1.0 / 1.0,        1.0 / 1.0};  // 1 / 12!, ..., 1 / 0!

// sampling/noise.py
constexpr uint32_t kGumbelStream = 0, kAcceptStream = 1, kGroupStream = 3;
constexpr uint32_t kPhiloxMultiply0 = 0xD2511F53u, kPhiloxMultiply2 = 0xCD9E8D57u;
constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9u, kPhiloxWeyl1 = 0xBB67AE85u;

// The sums of `tally`, of values >= least and >= value; each wrong by at most kTallyError times the row's whole sum.
struct Masses {
  double all, from;
};
constexpr double kTallyError = 1.5e-5;

}  // namespace forerun
