#include "weights/source.h"

#include <cstring>
#include <stdexcept>

#include "simd/half.h"

namespace forerun {

namespace {

constexpr SourceTraits kTraits[] = {
    {"F32", 1, 4, false, false, 0, 0, 0},    {"F16", 1, 2, false, false, 0, 0, 0},
    {"BF16", 1, 2, false, false, 0, 0, 0},   {"Q8_0", 32, 34, true, false, 32, -128, 127},
    {"Q4_0", 32, 18, true, false, 32, -8, 7}, {"Q4_1", 32, 20, true, true, 32, 0, 15},
    {"Q5_0", 32, 22, true, false, 32, -16, 15}, {"Q5_1", 32, 24, true, true, 32, 0, 31},
    {"Q4_K", 256, 144, true, true, 32, 0, 15}, {"Q5_K", 256, 176, true, true, 32, 0, 31},
    {"Q6_K", 256, 210, true, false, 16, -32, 31},
};

uint16_t read16(const uint8_t* p) { return uint16_t(p[0] | p[1] << 8); }
uint32_t read32(const uint8_t* p) { return uint32_t(read16(p)) | uint32_t(read16(p + 2)) << 16; }
float read_f16(const uint8_t* p) { return f16_to_f32(read16(p)); }

// Where the integers of a block go.
struct Groups {
  int8_t* q;
  float* scale;
  float* minimum;
};

void halves(const uint8_t* nibbles, int n, int8_t* low, int8_t* high) {
  for (int i = 0; i < n; i++) {
    low[i] = int8_t(nibbles[i] & 15);
    high[i] = int8_t(nibbles[i] >> 4);
  }
}

void q8_0(const uint8_t* p, Groups out) {
  *out.scale = read_f16(p);
  *out.minimum = 0.0f;
  for (int i = 0; i < 32; i++) out.q[i] = int8_t(p[2 + i]);
}

void q4_0(const uint8_t* p, Groups out) {
  *out.scale = read_f16(p);
  *out.minimum = 0.0f;
  halves(p + 2, 16, out.q, out.q + 16);
  for (int i = 0; i < 32; i++) out.q[i] = int8_t(out.q[i] - 8);
}

void q4_1(const uint8_t* p, Groups out) {
  *out.scale = read_f16(p);
  *out.minimum = read_f16(p + 2);
  halves(p + 4, 16, out.q, out.q + 16);
}

void fifth_bits(uint32_t bits, int8_t* q) {
  for (int i = 0; i < 32; i++) q[i] = int8_t(q[i] | int((bits >> i) & 1u) << 4);
}

void q5_0(const uint8_t* p, Groups out) {
  *out.scale = read_f16(p);
  *out.minimum = 0.0f;
  halves(p + 6, 16, out.q, out.q + 16);
  fifth_bits(read32(p + 2), out.q);
  for (int i = 0; i < 32; i++) out.q[i] = int8_t(out.q[i] - 16);
}

void q5_1(const uint8_t* p, Groups out) {
  *out.scale = read_f16(p);
  *out.minimum = read_f16(p + 2);
  halves(p + 8, 16, out.q, out.q + 16);
  fifth_bits(read32(p + 4), out.q);
}

// Scales and minima of the eight groups of a Q4_K or Q5_K block: 6 bits each in 12 bytes, times d and dmin.
void k_scales(const uint8_t* p, Groups out) {
  const float d = read_f16(p), dmin = read_f16(p + 2);
  const uint8_t* s = p + 4;
  for (int j = 0; j < 8; j++) {
    const int scale = j < 4 ? s[j] & 63 : (s[j + 4] & 15) | (s[j - 4] >> 6) << 4;
    const int minimum = j < 4 ? s[j + 4] & 63 : s[j + 4] >> 4 | (s[j] >> 6) << 4;
    out.scale[j] = d * float(scale);
    out.minimum[j] = -(dmin * float(minimum));
  }
}

void q4_k(const uint8_t* p, Groups out) {
  k_scales(p, out);
  for (int pair = 0; pair < 4; pair++) halves(p + 16 + 32 * pair, 32, out.q + 64 * pair, out.q + 64 * pair + 32);
}

void q5_k(const uint8_t* p, Groups out) {
  k_scales(p, out);
  const uint8_t* high = p + 16;
  for (int pair = 0; pair < 4; pair++) {
    int8_t* q = out.q + 64 * pair;
    halves(p + 48 + 32 * pair, 32, q, q + 32);
    for (int i = 0; i < 32; i++) {
      q[i] = int8_t(q[i] | ((high[i] >> (2 * pair)) & 1) << 4);
      q[i + 32] = int8_t(q[i + 32] | ((high[i] >> (2 * pair + 1)) & 1) << 4);
    }
  }
}

void q6_k(const uint8_t* p, Groups out) {
  const uint8_t *low = p, *high = p + 128;
  const float d = read_f16(p + 208);
  for (int part = 0; part < 2; part++, low += 64, high += 32) {
    int8_t* q = out.q + 128 * part;
    for (int i = 0; i < 32; i++) {
      q[i] = int8_t(((low[i] & 15) | (high[i] & 3) << 4) - 32);
      q[i + 32] = int8_t(((low[i + 32] & 15) | (high[i] >> 2 & 3) << 4) - 32);
      q[i + 64] = int8_t((low[i] >> 4 | (high[i] >> 4 & 3) << 4) - 32);
      q[i + 96] = int8_t((low[i + 32] >> 4 | (high[i] >> 6 & 3) << 4) - 32);
    }
  }
  for (int j = 0; j < 16; j++) {
    out.scale[j] = d * float(int8_t(p[192 + j]));
    out.minimum[j] = 0.0f;
  }
}

void integer_block(SourceKind kind, const uint8_t* p, Groups out) {
  switch (kind) {
    case SourceKind::Q8_0: return q8_0(p, out);
    case SourceKind::Q4_0: return q4_0(p, out);
    case SourceKind::Q4_1: return q4_1(p, out);
    case SourceKind::Q5_0: return q5_0(p, out);
    case SourceKind::Q5_1: return q5_1(p, out);
    case SourceKind::Q4_K: return q4_k(p, out);
    case SourceKind::Q5_K: return q5_k(p, out);
    case SourceKind::Q6_K: return q6_k(p, out);
    default: return;
  }
}

template <class Convert>
inline void widen(const uint8_t* row, int n, const Convert& convert, float* out) {
  for (int i = 0; i < n; i++) {
    uint16_t bits;
    std::memcpy(&bits, row + 2 * static_cast<size_t>(i), sizeof bits);
    out[i] = convert(bits);
  }
}

// Whether none of n numbers, `step` bytes apart, has all bits of its exponent set: such are NaN and infinities.
template <class Bits>
bool finite(const uint8_t* at, int n, int step, Bits exponent) {
  Bits found = 0;
  for (int i = 0; i < n; i++, at += step) {
    Bits bits;
    std::memcpy(&bits, at, sizeof bits);
    found |= Bits((bits & exponent) == exponent);
  }
  return found == 0;
}

}  // namespace

SourceKind source_kind(const std::string& name) {
  for (size_t i = 0; i < sizeof kTraits / sizeof *kTraits; i++)
    if (name == kTraits[i].name) return SourceKind(i);
  throw std::invalid_argument("weights of type " + name + " are not supported");
}

const SourceTraits& traits(SourceKind kind) { return kTraits[static_cast<int>(kind)]; }

size_t source_row_bytes(SourceKind kind, int inputs) {
  const SourceTraits& t = traits(kind);
  if (inputs <= 0 || inputs % t.block != 0)
    throw std::invalid_argument(std::string("a row of ") + std::to_string(inputs) + " weights cannot be in blocks of type " + t.name);
  return static_cast<size_t>(inputs / t.block) * t.bytes;
}

bool finite_row(SourceKind kind, const uint8_t* row, int inputs) {
  const SourceTraits& t = traits(kind);
  const uint16_t half = 0x7c00;
  switch (kind) {
    case SourceKind::F32: return finite<uint32_t>(row, inputs, 4, 0x7f800000);
    case SourceKind::F16: return finite<uint16_t>(row, inputs, 2, half);
    case SourceKind::BF16: return finite<uint16_t>(row, inputs, 2, 0x7f80);
    case SourceKind::Q6_K: return finite<uint16_t>(row + 208, inputs / t.block, t.bytes, half);
    default: break;
  }
  const int blocks = inputs / t.block;
  return finite<uint16_t>(row, blocks, t.bytes, half) && (!t.has_min || finite<uint16_t>(row + 2, blocks, t.bytes, half));
}

void integer_row(SourceKind kind, const uint8_t* row, int inputs, int8_t* q, float* scale, float* minimum) {
  const SourceTraits& t = traits(kind);
  const int groups = t.block / t.group;
  for (int at = 0; at < inputs; at += t.block, row += t.bytes, scale += groups, minimum += groups)
    integer_block(kind, row, {q + at, scale, minimum});
}

void dequantise_row(SourceKind kind, const uint8_t* row, int inputs, float* out) {
  const SourceTraits& t = traits(kind);
  if (kind == SourceKind::F32) std::memcpy(out, row, static_cast<size_t>(inputs) * sizeof(float));
  if (kind == SourceKind::F16) widen(row, inputs, f16_to_f32, out);
  if (kind == SourceKind::BF16) widen(row, inputs, bf16_to_f32, out);
  if (!t.integer) return;
  int8_t q[256];
  float scale[16], minimum[16];
  for (int at = 0; at < inputs; at += t.block, row += t.bytes) {
    integer_block(kind, row, {q, scale, minimum});
    for (int i = 0; i < t.block; i++) {
      const float scaled = scale[i / t.group] * float(q[i]);
      out[at + i] = t.has_min ? scaled + minimum[i / t.group] : scaled;
    }
  }
}

void dequantise_rows(SourceKind kind, const uint8_t* raw, int inputs, int row_begin, int row_end, float* out) {
  const size_t bytes = source_row_bytes(kind, inputs);
  for (int r = row_begin; r < row_end; r++, out += inputs) dequantise_row(kind, raw + r * bytes, inputs, out);
}

}  // namespace forerun
