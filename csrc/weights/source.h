// Tensors as files hold them: rows of floats or of quantised blocks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>

namespace forerun {

enum class SourceKind : uint8_t { F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, Q6_K };

// "Q4_1" and the like. Throws std::invalid_argument for a name that is not one of the above.
SourceKind source_kind(const std::string& name);

// How a kind lays out its rows. Integer kinds hold a value as scale * q, or scale * q + minimum.
struct SourceTraits {
  const char* name;
  int block;     // inputs in a block
  int bytes;     // of a block
  bool integer;  // quantised
  bool has_min;
  int group;     // inputs that share a scale
  int lowest, highest;  // of q
};
const SourceTraits& traits(SourceKind kind);

// Bytes of a row. Throws std::invalid_argument when `inputs` is not a positive multiple of the block.
size_t source_row_bytes(SourceKind kind, int inputs);

// A row as floats, exactly as the format defines them. row: source_row_bytes; out: [inputs].
void dequantise_row(SourceKind kind, const uint8_t* row, int inputs, float* out);
void dequantise_rows(SourceKind kind, const uint8_t* raw, int inputs, int row_begin, int row_end, float* out);

// Whether all numbers of a row are finite; of an integer kind, the scales and minima that its blocks store.
bool finite_row(SourceKind kind, const uint8_t* row, int inputs);

// An integer kind's row as integers with scales. q: [inputs]; scale, minimum: [inputs / group] (minimum 0 without has_min).
void integer_row(SourceKind kind, const uint8_t* row, int inputs, int8_t* q, float* scale, float* minimum);

}  // namespace forerun
