#include "weights/packed.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>
#include <utility>
#include <vector>

#include "kernels/layout.h"
#include "simd/half.h"

namespace forerun {

namespace {

bool quantised(Format f) { return f == Format::q8 || f == Format::q4; }

// Whether the kind's integers are executed as they are, with its own scales.
bool keeps_integers(SourceKind kind, Format execution) {
  const SourceTraits& t = traits(kind);
  return t.integer && (execution == Format::q8 || (execution == Format::q4 && t.highest - t.lowest == 15));
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

int bytes_per_weight(Format f) { return f == Format::f32 ? 4 : 2; }

// The power of two whose multiples keep f16 scales precise: `largest` lies just below f16's maximum.
float unit_for(float largest) {
  if (!(largest > 0.0f)) return 1.0f;
  const int exponent = std::ilogb(largest) - 15;
  const float unit = std::ldexp(1.0f, exponent < -126 ? -126 : exponent);
  return largest / unit < 65520.0f ? unit : 2.0f * unit;
}

// The 16 rows of a tile; null where the layer has fewer outputs.
struct Rows {
  const uint8_t* row[kTile];
};

// --- float formats ---------------------------------------------------------------------------------------------------

// Tile layout: for each step of `together` inputs, those of output 0, of output 1, ... Elements of `size` bytes.
template <int size, int together>
void pack_as_is(const Rows& rows, int inputs, uint8_t* tile) {
  constexpr size_t step = static_cast<size_t>(size) * together;
  const int whole = inputs / together, rest = inputs % together;
  for (int i = 0; i < kTile; i++) {
    const uint8_t* row = rows.row[i];
    if (!row) continue;
    uint8_t* out = tile + i * step;
    for (int k = 0; k < whole; k++, row += step, out += kTile * step) std::memcpy(out, row, step);
    if (rest > 0) std::memcpy(out, row, static_cast<size_t>(size) * rest);
  }
}

void pack_floats(SourceKind kind, Format execution, const Rows& rows, int inputs, uint8_t* tile) {
  const int together = execution == Format::bf16 ? 2 : 1;
  std::vector<float> wide(static_cast<size_t>(inputs));
  for (int i = 0; i < kTile; i++) {
    if (!rows.row[i]) continue;
    dequantise_row(kind, rows.row[i], inputs, wide.data());
    for (int k = 0; k < inputs; k++) {
      const size_t at = static_cast<size_t>(k / together) * kTile * together + i * together + k % together;
      if (execution == Format::f32) reinterpret_cast<float*>(tile)[at] = wide[k];
      else reinterpret_cast<uint16_t*>(tile)[at] = execution == Format::bf16 ? f32_to_bf16(wide[k]) : f32_to_f16(wide[k]);
    }
  }
}

// --- quantised formats -----------------------------------------------------------------------------------------------

// A tile's weights as scale * q + offset, with q centred on zero, before they are laid out.
struct Integers {
  int inputs, scales_per_row;
  std::vector<int8_t> q;             // [kTile][inputs]
  std::vector<float> scale, offset;  // [kTile][scales_per_row]
  float unit = 1.0f;

  Integers(int inputs, int group) : inputs(inputs), scales_per_row(inputs / group) {
    q.resize(static_cast<size_t>(kTile) * inputs);
    scale.resize(static_cast<size_t>(kTile) * scales_per_row);
    offset.resize(scale.size());
  }
  int8_t* q_row(int i) { return q.data() + static_cast<size_t>(i) * inputs; }
  float* scale_row(int i) { return scale.data() + static_cast<size_t>(i) * scales_per_row; }
  float* offset_row(int i) { return offset.data() + static_cast<size_t>(i) * scales_per_row; }
};

// Takes integers from 0 .. 2c - 1 to -c .. c - 1, which leaves small offsets where there were large minima.
void centre(const SourceTraits& t, Integers* tile, int i) {
  if (!t.has_min) return;
  const int c = (t.highest + 1) / 2, inputs = tile->inputs;
  int8_t* q = tile->q_row(i);
  for (int k = 0; k < inputs; k++) q[k] = int8_t(q[k] - c);
  for (int g = 0; g < tile->scales_per_row; g++) tile->offset_row(i)[g] += tile->scale_row(i)[g] * float(c);
}

void read_integers(SourceKind kind, const Rows& rows, Integers* tile) {
  float largest = 0.0f;
  for (int i = 0; i < kTile; i++) {
    if (!rows.row[i]) {
      std::memset(tile->q_row(i), 0, static_cast<size_t>(tile->inputs));
      std::fill_n(tile->scale_row(i), tile->scales_per_row, 0.0f);
      std::fill_n(tile->offset_row(i), tile->scales_per_row, 0.0f);
      continue;
    }
    integer_row(kind, rows.row[i], tile->inputs, tile->q_row(i), tile->scale_row(i), tile->offset_row(i));
    centre(traits(kind), tile, i);
    for (int g = 0; g < tile->scales_per_row; g++)
      largest = std::max({largest, std::fabs(tile->scale_row(i)[g]), std::fabs(tile->offset_row(i)[g])});
  }
  tile->unit = unit_for(largest);
}

const Kernels& best_kernels() {
  static const Kernels* const best = find_kernels("");
  return *best;
}

// Of finite numbers, whose magnitudes are ordered as their bits are.
float largest_magnitude(const float* x, int n) {
  int32_t top = 0;
  for (int i = 0; i < n; i++) {
    const int32_t bits = int32_t(f32_to_bits(x[i]) & 0x7fffffffu);
    top = bits > top ? bits : top;
  }
  return bits_to_f32(uint32_t(top));
}

// Floats, or integers that do not fit: quantised anew.
void make_integers(SourceKind kind, Format execution, const Rows& rows, int inputs, Integers* tile) {
  std::vector<float> wide(static_cast<size_t>(kTile) * tile->inputs);
  float largest = 0.0f;
  for (int i = 0; i < kTile; i++) {
    float* row = wide.data() + static_cast<size_t>(i) * tile->inputs;
    if (!rows.row[i]) continue;
    dequantise_row(kind, rows.row[i], inputs, row);
    largest = std::max(largest, largest_magnitude(row, inputs));
  }
  tile->unit = unit_for(2.0f * largest);
  const Kernels& kernels = best_kernels();
  const size_t stride = static_cast<size_t>(tile->inputs);
  float scale[kTile], offset[kTile] = {};
  for (int g = 0; g < tile->scales_per_row; g++) {
    const float* x = wide.data() + g * kGroup;
    int8_t* q = tile->q.data() + g * kGroup;
    const int n = std::min(kGroup, inputs - g * kGroup);
    if (execution == Format::q4) kernels.quantise_q4(x, q, stride, n, tile->unit, scale, offset);
    else kernels.quantise_q8(x, q, stride, n, tile->unit, scale);
    for (int i = 0; i < kTile; i++) {
      tile->scale_row(i)[g] = scale[i];
      tile->offset_row(i)[g] = offset[i];
    }
  }
}

// Four weights of a row, one a byte.
uint32_t four_at(const int8_t* q) {
  uint32_t four;
  std::memcpy(&four, q, 4);
  return four;
}

// With 128 added, and with 8 added to weights of 4 bits.
void lay_out_q8(const Integers& tile, int g, uint8_t* out) {
  for (int s = 0; s < kGroup / 4; s++)
    for (int i = 0; i < kTile; i++, out += 4) {
      const uint32_t four = four_at(tile.q.data() + static_cast<size_t>(i) * tile.inputs + g * kGroup + 4 * s) ^ 0x80808080u;
      std::memcpy(out, &four, 4);
    }
}
void lay_out_q4(const Integers& tile, int g, uint8_t* out) {
  const uint32_t low = 0x0f0f0f0fu, eight = 0x08080808u;
  for (int s = 0; s < kGroup / 8; s++)
    for (int i = 0; i < kTile; i++, out += 4) {
      const int8_t* q = tile.q.data() + static_cast<size_t>(i) * tile.inputs + g * kGroup + 8 * s;
      const uint32_t both = ((four_at(q) & low) ^ eight) | ((four_at(q + 4) & low) ^ eight) << 4;
      std::memcpy(out, &both, 4);
    }
}

void lay_out(const Linear& w, const Integers& tile, uint8_t* out) {
  const PairLayout layout = pair_layout(w.format, w.has_min, w.group);
  const int halves = kGroup / w.group;
  const float inverse = 1.0f / tile.unit;
  for (int g = 0; g < tile.inputs / kGroup; g++) {
    uint8_t* pair = out + g / 2 * layout.bytes;
    uint8_t* weights = pair + g % 2 * layout.group_weights;
    if (w.format == Format::q8) lay_out_q8(tile, g, weights);
    else lay_out_q4(tile, g, weights);
    uint16_t* scales = reinterpret_cast<uint16_t*>(pair + layout.scales + g % 2 * layout.scales_of_group);
    for (int h = 0; h < halves; h++)
      for (int i = 0; i < kTile; i++)
        *scales++ = f32_to_f16(tile.scale[static_cast<size_t>(i) * tile.scales_per_row + g * halves + h] * inverse);
    if (!w.has_min) continue;
    uint16_t* offsets = reinterpret_cast<uint16_t*>(pair + layout.offsets) + g % 2;
    for (int i = 0; i < kTile; i++)
      offsets[2 * i] = f32_to_bf16(tile.offset[static_cast<size_t>(i) * tile.scales_per_row + g] * inverse);
  }
}

// One tile from its rows. unit: the tile's, and integers: room for its weights, where the format is quantised.
void pack_tile(const Linear& w, SourceKind kind, const Rows& rows, uint8_t* tile, float* unit, Integers* integers) {
  if (quantised(w.format)) {
    if (keeps_integers(kind, w.format)) read_integers(kind, rows, integers);
    else make_integers(kind, w.format, rows, w.inputs, integers);
    *unit = integers->unit;
    lay_out(w, *integers, tile);
  } else if (kind == SourceKind::F32 && w.format == Format::f32) {
    pack_as_is<4, 1>(rows, w.inputs, tile);
  } else if (kind == SourceKind::F16 && w.format == Format::f16) {
    pack_as_is<2, 1>(rows, w.inputs, tile);
  } else if (kind == SourceKind::BF16 && w.format == Format::bf16) {
    pack_as_is<2, 2>(rows, w.inputs, tile);
  } else {
    pack_floats(kind, w.format, rows, w.inputs, tile);
  }
}

// Output i of a tile as floats.
void unpack_integers(const Linear& w, const uint8_t* tile, int i, float unit, float* out) {
  const PairLayout layout = pair_layout(w.format, w.has_min, w.group);
  for (int begin = 0; begin < w.inputs; begin += w.group) {
    const uint8_t* pair = tile + static_cast<size_t>(begin / (2 * kGroup)) * layout.bytes;
    const int second = begin / kGroup % 2, in_group = begin % kGroup, end = std::min(begin + w.group, w.inputs);
    const uint8_t* weights = pair + second * layout.group_weights + 4 * i;
    const uint16_t* scales = reinterpret_cast<const uint16_t*>(pair + layout.scales + second * layout.scales_of_group);
    const uint16_t* offsets = reinterpret_cast<const uint16_t*>(pair + layout.offsets);
    const float scale = f16_to_f32(scales[in_group / w.group * kTile + i]);
    const float offset = w.has_min ? bf16_to_f32(offsets[2 * i + second]) : 0.0f;
    for (int k = begin; k < end; k++) {
      const int step = k % kGroup / 4, j = k % 4;
      int q;
      if (w.format == Format::q8) {
        q = int(weights[step * 4 * kTile + j]) - 128;
      } else {
        const uint8_t both = weights[step / 2 * 4 * kTile + j];
        q = (step % 2 ? both >> 4 : both & 15) - 8;
      }
      out[k] = (scale * float(q) + offset) * unit;
    }
  }
}

// An odd last group's twin stays zero.
Integers room_for(const Linear& w) { return Integers(quantised(w.format) ? static_cast<int>(round_up(w.inputs, kGroup)) : 0, w.group); }

}  // namespace

Format automatic_format(SourceKind kind) {
  switch (kind) {
    case SourceKind::F32: return Format::f32;
    case SourceKind::F16: return Format::f16;
    case SourceKind::BF16: return Format::bf16;
    default: return keeps_integers(kind, Format::q4) ? Format::q4 : Format::q8;
  }
}

PackedLinear::PackedLinear(std::shared_ptr<Arena> arena, SourceKind kind, Format execution, int outputs, int inputs, const float* bias)
    : arena_(std::move(arena)), kind_(kind) {
  source_row_bytes(kind, inputs);
  if (outputs <= 0) throw std::invalid_argument("a linear layer needs outputs");
  Linear& w = view_;
  w.format = execution;
  w.outputs = outputs;
  w.inputs = inputs;
  w.tiles = (outputs + kTile - 1) / kTile;
  w.group = kGroup;
  if (quantised(execution)) {
    const SourceTraits& t = traits(kind);
    const bool keep = keeps_integers(kind, execution);
    w.has_min = keep ? t.has_min : execution == Format::q4;
    w.group = keep ? t.group : kGroup;
    w.tile_bytes = static_cast<size_t>(pairs_of(inputs)) * pair_layout(execution, w.has_min, w.group).bytes;
    unit_ = reinterpret_cast<float*>(arena_->take(sizeof(float) * w.tiles));
  } else {
    w.tile_bytes = round_up(round_up(inputs, 2) * kTile * bytes_per_weight(execution), 64);
  }
  data_ = arena_->take(bytes());
  w.data = data_;
  w.unit = unit_;
  if (bias) {
    float* own = reinterpret_cast<float*>(arena_->take(sizeof(float) * w.tiles * kTile));
    std::memcpy(own, bias, sizeof(float) * outputs);
    w.bias = own;
  }
}

void PackedLinear::pack_tiles(const Source& source, const int32_t* row_order, int tile_begin, int tile_end) {
  const Linear& w = view_;
  const size_t row_bytes = source_row_bytes(source.kind, w.inputs);
  const size_t held = source.raw_bytes / row_bytes;
  if (source.kind != kind_ || held < static_cast<size_t>(w.outputs) || tile_begin < 0 || tile_end > w.tiles)
    throw std::invalid_argument("a tensor is shorter than its shape says");
  Integers integers = room_for(w);
  for (int t = tile_begin; t < tile_end; t++) {
    Rows rows{};
    for (int i = 0; i < kTile && t * kTile + i < w.outputs; i++) {
      const int output = t * kTile + i, row = row_order ? row_order[output] : output;
      if (row < 0 || static_cast<size_t>(row) >= held) throw std::invalid_argument("a row order names a row that is not there");
      rows.row[i] = source.raw + row * row_bytes;
      if (!finite_row(source.kind, rows.row[i], w.inputs)) throw std::overflow_error("a weight is not a finite number");
    }
    pack_tile(w, source.kind, rows, data_ + t * w.tile_bytes, unit_ ? unit_ + t : nullptr, &integers);
  }
}

void PackedLinear::take_tiles(const PackedLinear& from, const int32_t* rows, int tile_begin, int tile_end) {
  const Linear& w = view_;
  if (kind_ != SourceKind::F32 || from.view_.inputs != w.inputs || tile_begin < 0 || tile_end > w.tiles)
    throw std::invalid_argument("rows of another layer than planned");
  Integers integers = room_for(w);
  std::vector<float> wide(static_cast<size_t>(kTile) * w.inputs);
  for (int t = tile_begin; t < tile_end; t++) {
    Rows taken{};
    for (int i = 0; i < kTile && t * kTile + i < w.outputs; i++) {
      float* row = wide.data() + static_cast<size_t>(i) * w.inputs;
      from.unpack_row(rows[t * kTile + i], row);
      taken.row[i] = reinterpret_cast<const uint8_t*>(row);
    }
    pack_tile(w, SourceKind::F32, taken, data_ + t * w.tile_bytes, unit_ ? unit_ + t : nullptr, &integers);
  }
}

void PackedLinear::unpack_row(int row, float* out) const {
  const Linear& w = view_;
  const uint8_t* tile = w.data + static_cast<size_t>(row / kTile) * w.tile_bytes;
  const int i = row % kTile;
  if (quantised(w.format)) return unpack_integers(w, tile, i, w.unit[row / kTile], out);
  const int together = w.format == Format::bf16 ? 2 : 1;
  for (int k = 0; k < w.inputs; k++) {
    const size_t at = static_cast<size_t>(k / together) * kTile * together + i * together + k % together;
    if (w.format == Format::f32) out[k] = reinterpret_cast<const float*>(tile)[at];
    else out[k] = (w.format == Format::f16 ? f16_to_f32 : bf16_to_f32)(reinterpret_cast<const uint16_t*>(tile)[at]);
  }
}

PackedLinear pack(std::shared_ptr<Arena> arena, const Source& source, Format execution, int outputs, int inputs,
                  const int32_t* row_order, const float* bias) {
  PackedLinear packed(std::move(arena), source.kind, execution, outputs, inputs, bias);
  packed.pack_tiles(source, row_order, 0, packed.view().tiles);
  return packed;
}

}  // namespace forerun
