// Quantisation of floats in groups.
#pragma once
#include <cstdint>

namespace forerun {

// What the layout can store: scales as f16, offsets as bf16, both in multiples of a power of two.
struct Rounding {
  float unit;
  float scale(float x) const;
  float offset(float x) const;
};

// x: [n], n at most 32. Chooses q in [-8, 7] so that scale * q + offset is close to x in the least squares sense.
void quantise_q4(const float* x, int n, Rounding rounding, int8_t* q, float* scale, float* offset);

// The same with q in [-127, 127] and no offset.
void quantise_q8(const float* x, int n, Rounding rounding, int8_t* q, float* scale);

}  // namespace forerun
