// An independent reading of the file formats in double precision, written from their specification, and little helpers.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

namespace reference {

inline double half(const uint8_t* p) {
  const unsigned h = p[0] | p[1] << 8, e = h >> 10 & 31, m = h & 1023;
  const double s = h & 0x8000 ? -1.0 : 1.0;
  if (e == 31) return m ? NAN : s * INFINITY;
  return e ? s * std::ldexp(1024.0 + m, int(e) - 25) : s * std::ldexp(double(m), -24);
}

inline double brain(const uint8_t* p) {
  const uint32_t u = uint32_t(p[0] | p[1] << 8) << 16;
  float f;
  std::memcpy(&f, &u, 4);
  return f;
}

// Weight k of a row of the named kind.
inline double weight(const std::string& kind, const uint8_t* row, int k) {
  if (kind == "F32") {
    float f;
    std::memcpy(&f, row + 4 * size_t(k), 4);
    return f;
  }
  if (kind == "F16") return half(row + 2 * size_t(k));
  if (kind == "BF16") return brain(row + 2 * size_t(k));
  const int i = k % 32;
  if (kind == "Q8_0") {
    const uint8_t* b = row + k / 32 * 34;
    return half(b) * double(int8_t(b[2 + i]));
  }
  if (kind == "Q4_0" || kind == "Q4_1" || kind == "Q5_0" || kind == "Q5_1") {
    const bool min = kind[3] == '1', five = kind[1] == '5';
    const int head = 2 + 2 * min + 4 * five;
    const uint8_t* b = row + k / 32 * (head + 16);
    int q = i < 16 ? b[head + i] & 15 : b[head + i - 16] >> 4;
    if (five) q += (b[head - 4 + i / 8] >> i % 8 & 1) * 16;
    return min ? half(b) * q + half(b + 2) : half(b) * (q - (five ? 16 : 8));
  }
  const int j = k % 256;
  if (kind == "Q4_K" || kind == "Q5_K") {
    const bool five = kind == "Q5_K";
    const uint8_t* b = row + k / 256 * (five ? 176 : 144);
    const uint8_t *s = b + 4, *nibbles = b + (five ? 48 : 16);
    const int g = j / 32;
    int scale, minimum;
    if (g < 4) {
      scale = s[g] & 63;
      minimum = s[g + 4] & 63;
    } else {
      scale = (s[g + 4] & 15) + (s[g - 4] >> 6) * 16;
      minimum = (s[g + 4] >> 4) + (s[g] >> 6) * 16;
    }
    const uint8_t pair = nibbles[g / 2 * 32 + i];
    int q = g % 2 ? pair >> 4 : pair & 15;
    if (five) q += (b[16 + i] >> g & 1) * 16;
    return half(b) * scale * q - half(b + 2) * minimum;
  }
  const uint8_t* b = row + k / 256 * 210;  // Q6_K
  const int part = j / 128, quarter = j % 128 / 32;
  const uint8_t pair = b[64 * part + (quarter % 2) * 32 + i];
  const int low = quarter / 2 ? pair >> 4 : pair & 15, high = b[128 + 32 * part + i] >> 2 * quarter & 3;
  return half(b + 208) * int8_t(b[192 + j / 16]) * (low + 16 * high - 32);
}

// Random tensors that look like weights: blocks with any integers and sensible scales.
class Generator {
 public:
  explicit Generator(unsigned seed) : random_(seed) {}
  float normal() { return normal_(random_); }
  uint8_t byte() { return uint8_t(random_()); }
  void put_half(uint8_t* p, float x) {  // truncated: any f16 will do
    int e;
    const float m = std::frexp(std::fabs(x), &e);  // x = m 2^e, m in [0.5, 1)
    const int exponent = e + 14;
    unsigned h = x < 0 ? 0x8000u : 0u;
    if (exponent >= 1 && exponent <= 30) h |= unsigned(exponent) << 10 | (unsigned(m * 2048.0f) & 1023u);
    p[0] = uint8_t(h);
    p[1] = uint8_t(h >> 8);
  }
  std::vector<uint8_t> tensor(const std::string& kind, size_t rows, int inputs, size_t row_bytes, int block_bytes, int block) {
    std::vector<uint8_t> raw(rows * row_bytes);
    for (auto& b : raw) b = byte();
    for (size_t r = 0; r < rows; r++)
      for (int k = 0; k < inputs; k += block) {
        uint8_t* p = raw.data() + r * row_bytes + size_t(k / block) * block_bytes;
        const float x = 0.05f * normal();
        if (kind == "F32") std::memcpy(p, &x, 4);
        else if (kind == "F16") put_half(p, x);
        else if (kind == "BF16") std::memcpy(p, reinterpret_cast<const uint8_t*>(&x) + 2, 2);
        else if (kind == "Q6_K") put_half(p + 208, 0.0001f * (1.5f + normal()));
        else put_half(p, 0.01f * (1.5f + normal()) / (kind == "Q4_K" || kind == "Q5_K" ? 32.0f : kind == "Q8_0" ? 8.0f : 1.0f));
        if (kind == "Q4_1" || kind == "Q5_1") put_half(p + 2, -0.1f + 0.02f * normal());
        if (kind == "Q4_K" || kind == "Q5_K") put_half(p + 2, 0.003f * (1.5f + normal()));
      }
    return raw;
  }

 private:
  std::mt19937 random_;
  std::normal_distribution<float> normal_{0.0f, 1.0f};
};

}  // namespace reference
