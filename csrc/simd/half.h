// Scalar conversions between f32 and the 16-bit floats, round to nearest even.
#pragma once
#include <cstdint>
#include <cstring>

namespace forerun {

static inline float bits_to_f32(uint32_t u) {
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}
static inline uint32_t f32_to_bits(float f) {
  uint32_t u;
  std::memcpy(&u, &f, 4);
  return u;
}

static inline float bf16_to_f32(uint16_t h) { return bits_to_f32(uint32_t(h) << 16); }
static inline uint16_t f32_to_bf16(float f) {
  uint32_t u = f32_to_bits(f);
  if ((u & 0x7fffffffu) > 0x7f800000u) return uint16_t((u >> 16) | 0x40u);  // NaN stays NaN
  return uint16_t((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f16_to_f32(uint16_t h) {
  const uint32_t sign = uint32_t(h & 0x8000u) << 16, exponent = (h >> 10) & 31u, mantissa = h & 1023u;
  if (exponent == 31) return bits_to_f32(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0) return bits_to_f32(sign | ((exponent + 112u) << 23) | (mantissa << 13));
  const float magnitude = float(mantissa) * 5.9604644775390625e-8f;  // subnormal: mantissa * 2^-24, exact
  return bits_to_f32(sign | f32_to_bits(magnitude));
}
static inline uint16_t f32_to_f16(float f) {
  const uint32_t u = f32_to_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a > 0x7f800000u) return uint16_t(sign | 0x7e00u);
  if (a >= 0x477ff000u) return uint16_t(sign | 0x7c00u);  // rounds to infinity
  if (a < 0x38800000u) {                                   // subnormal: let the adder round at 2^-24
    const float r = bits_to_f32(a) + 0.5f;
    return uint16_t(sign | (f32_to_bits(r) - 0x3f000000u));
  }
  return uint16_t(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

}  // namespace forerun
