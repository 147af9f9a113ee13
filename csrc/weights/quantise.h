// Quantisation of floats in groups.
#pragma once
#include <cstdint>

namespace forerun {

// Rounds a scale or minimum to what the layout can store.
struct Rounding {
  float unit;  // a power of two: multiples of it are stored as f16
  float operator()(float x) const;
};

// x: [n], n at most 32. Chooses q in [0, 15] so that scale * q + minimum is close to x in the least squares sense.
void quantise_q4(const float* x, int n, Rounding rounding, int8_t* q, float* scale, float* minimum);

// The same with q in [-127, 127] and no minimum.
void quantise_q8(const float* x, int n, Rounding rounding, int8_t* q, float* scale);

}  // namespace forerun
