// Packing and linear layers: every kind of source in every format on every instruction set of this machine.
// Prints one line a failure and a summary; exits with 1 if anything failed.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>

#include "kernels/layout.h"
#include "tests/check.h"
#include "tests/fenced.h"
#include "tests/reference.h"
#include "weights/packed.h"

using namespace forerun;

namespace {

Checks check;

const char* name(Format f) {
  switch (f) {
    case Format::f32: return "f32";
    case Format::f16: return "f16";
    case Format::bf16: return "bf16";
    case Format::q8: return "q8";
    default: return "q4";
  }
}

struct Case {
  std::string kind;
  Format format;
  int outputs, inputs;
  std::string text() const {
    return kind + " as " + name(format) + " [" + std::to_string(outputs) + ", " + std::to_string(inputs) + "]";
  }
};

// A layer, the weights its source holds, and the weights as executed.
struct Layer {
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
  PackedLinear packed;
  Fenced data, unit, all_biases;  // what the packed layer has, each array behind a fence
  Linear w{};                     // the layer that has these
  std::vector<double> exact;      // [outputs][inputs]
  std::vector<float> executed;    // [outputs][inputs]
  std::vector<float> bias;
};

Layer make_layer(const Case& c, reference::Generator& random, bool with_bias, bool shuffled) {
  const SourceKind kind = source_kind(c.kind);
  const size_t row_bytes = source_row_bytes(kind, c.inputs);
  const std::vector<uint8_t> raw = random.tensor(c.kind, c.outputs, c.inputs, row_bytes, traits(kind).bytes, traits(kind).block);
  std::vector<int32_t> order(c.outputs);
  for (int i = 0; i < c.outputs; i++) order[i] = shuffled ? (i * 7 + 3) % c.outputs : i;
  Layer layer;
  if (with_bias)
    for (int i = 0; i < c.outputs; i++) layer.bias.push_back(random.normal());
  layer.packed = pack(layer.arena, {kind, raw.data(), raw.size()}, c.format, c.outputs, c.inputs, shuffled ? order.data() : nullptr,
                      with_bias ? layer.bias.data() : nullptr);
  const Linear& view = layer.packed.view();
  layer.data = Fenced(view.data, view.tiles * view.tile_bytes);
  if (view.unit) layer.unit = Fenced(view.unit, view.tiles * sizeof(float));
  if (view.bias) layer.all_biases = Fenced(view.bias, view.tiles * kTile * sizeof(float));
  layer.w = view;
  layer.w.data = layer.data.as<uint8_t>();
  layer.w.unit = layer.unit.as<float>();
  layer.w.bias = layer.all_biases.as<float>();
  std::vector<float> row(c.inputs);
  bool same = true;
  for (int o = 0; o < c.outputs; o++) {
    const uint8_t* source = raw.data() + order[o] * row_bytes;
    dequantise_row(kind, source, c.inputs, row.data());
    for (int k = 0; k < c.inputs; k++) {
      const double exact = reference::weight(c.kind, source, k);
      same = same && std::fabs(exact - row[k]) <= 1e-6 * std::fabs(exact) + 1e-7 * 0.05;
      layer.exact.push_back(exact);
    }
    layer.packed.unpack_row(o, row.data());
    layer.executed.insert(layer.executed.end(), row.begin(), row.end());
  }
  check(same, c.text() + ": dequantised row equals the reference");
  return layer;
}

double relative(const std::vector<double>& exact, const std::vector<float>& got) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < exact.size(); i++) {
    difference += (exact[i] - got[i]) * (exact[i] - got[i]);
    norm += exact[i] * exact[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// How far the executed weights may lie from the source's, as a ratio of norms.
double packing_tolerance(const Case& c) {
  const SourceTraits& t = traits(source_kind(c.kind));
  if (c.format == Format::f32) return 1e-7;
  if (c.format == Format::f16) return 3e-4;
  if (c.format == Format::bf16) return c.kind == "BF16" ? 0.0 : 2.5e-3;
  const bool keeps = t.integer && (c.format == Format::q8 || t.highest - t.lowest == 15);
  if (keeps && t.has_min) return 2.5e-3;          // offsets are kept in bf16
  if (keeps) return t.block == 32 ? 1e-7 : 6e-4;  // Q6_K: products of scales rounded to f16
  return c.format == Format::q8 ? 8e-3 : 0.12;
}

void test_packing(const Case& c, const Layer& layer) {
  const double error = relative(layer.exact, layer.executed);
  check(error <= packing_tolerance(c), c.text() + ": packing error " + std::to_string(error));
}

// Inputs that resemble activations: some large, some tiny, a group of zeros.
std::vector<float> activations(reference::Generator& random, int n, int inputs) {
  std::vector<float> x(size_t(n) * inputs);
  for (size_t i = 0; i < x.size(); i++) {
    x[i] = random.normal() * (i % 97 == 0 ? 20.0f : i % 13 == 0 ? 0.01f : 1.0f);
    if (i % inputs / 32 == 1) x[i] = 0.0f;
  }
  return x;
}

std::vector<float> run(const Kernels& k, const Linear& w, const std::vector<float>& x, int first, int n, int tile_begin, int tile_end,
                       bool in_parts = false) {
  const RowKind kind = k.row_kind(w.format);
  const size_t stride = k.row_bytes(kind, w.inputs);
  const Fenced fenced(stride * n), inputs(x.data() + size_t(first) * w.inputs, sizeof(float) * n * w.inputs);
  uint8_t* rows = fenced.as<uint8_t>();
  std::memset(rows, 0xff, stride * n);
  for (int m = 0; m < n; m++) {
    const float* row = inputs.as<float>() + size_t(m) * w.inputs;
    const int middle = in_parts ? w.inputs / kGroup / 2 * kGroup : 0;
    if (middle > 0) k.prepare(kind, row, w.inputs, 0, middle, rows + m * stride);
    k.prepare(kind, row + middle, w.inputs, middle, w.inputs, rows + m * stride);
    if (kind == RowKind::q8 && w.outputs % 2 == 0) k.refine(row, w.inputs, rows + m * stride);
  }
  const size_t ldy = size_t(tile_end - tile_begin) * kTile + 16;
  std::vector<float> y(ldy * n, -77.0f);
  k.linear(w, rows, n, tile_begin, tile_end, y.data(), ldy);
  std::vector<float> out;
  bool untouched = true;
  for (int m = 0; m < n; m++) {
    for (size_t i = ldy - 16; i < ldy; i++) untouched = untouched && y[m * ldy + i] == -77.0f;
    out.insert(out.end(), y.begin() + m * ldy, y.begin() + (m + 1) * ldy - 16);
  }
  check(untouched, "nothing is written beyond the last tile");
  return out;
}

bool same_bits(const float* a, const float* b, size_t n) { return std::memcmp(a, b, n * sizeof(float)) == 0; }

// The law of width invariance: rows one at a time, in blocks of any size, tiles in any ranges.
void test_invariance(const Kernels& k, const Case& c, const Layer& layer, const std::vector<float>& x, int rows) {
  const Linear& w = layer.w;
  const size_t wide = size_t(w.tiles) * kTile;
  std::vector<float> single;
  for (int m = 0; m < rows; m++) {
    const std::vector<float> y = run(k, w, x, m, 1, 0, w.tiles);
    single.insert(single.end(), y.begin(), y.end());
  }
  for (int n = 1; n <= rows; n++) {
    const int first = (rows - n) / 2;
    const std::vector<float> y = run(k, w, x, first, n, 0, w.tiles, n % 2 == 0);
    check(same_bits(y.data(), single.data() + first * wide, y.size()), std::string(k.name) + ", " + c.text() + ": " + std::to_string(n) + " rows at once");
  }
  for (int n : {1, 5, 17})
    for (int begin = 0; begin < w.tiles; begin += 2)
      for (int end = begin + 1; end <= w.tiles; end += 1 + (w.tiles - begin) / 2) {
        const std::vector<float> y = run(k, w, x, 0, n, begin, end);
        bool same = true;
        for (int m = 0; m < n; m++)
          same = same && same_bits(y.data() + size_t(m) * (end - begin) * kTile, single.data() + m * wide + begin * kTile, size_t(end - begin) * kTile);
        check(same, std::string(k.name) + ", " + c.text() + ": tiles " + std::to_string(begin) + " to " + std::to_string(end));
      }
}

// Against double precision with the executed weights: what is left is rounding of inputs and sums.
double test_closeness(const Kernels& k, const Case& c, const Layer& layer, const std::vector<float>& x, int rows) {
  const Linear& w = layer.w;
  const std::vector<float> y = run(k, w, x, 0, rows, 0, w.tiles);
  std::vector<double> exact;
  std::vector<float> got;
  double scale = 0;
  for (int m = 0; m < rows; m++)
    for (int o = 0; o < c.outputs; o++) {
      double sum = layer.bias.empty() ? 0.0 : layer.bias[o], magnitude = 0.0;
      for (int i = 0; i < c.inputs; i++) {
        const double term = double(x[size_t(m) * c.inputs + i]) * layer.executed[size_t(o) * c.inputs + i];
        sum += term;
        magnitude += term * term;
      }
      exact.push_back(sum);
      got.push_back(y[size_t(m) * w.tiles * kTile + o]);
      scale += magnitude;  // what sums of independent terms would have for a square
    }
  double difference = 0;
  for (size_t i = 0; i < exact.size(); i++) difference += (exact[i] - got[i]) * (exact[i] - got[i]);
  const double error = scale > 0 ? std::sqrt(difference / scale) : std::sqrt(difference);
  const RowKind kind = k.row_kind(w.format);
  const double tolerance = kind == RowKind::q8 ? 4e-2 : kind == RowKind::bf16 ? 4e-3 : 1e-5;
  check(error <= tolerance, std::string(k.name) + ", " + c.text() + ": error " + std::to_string(error));
  return error;
}

// Integers that 8 bits hold exactly: then quantised layers have only the rounding of float sums, and of what multiplies offsets.
void test_exact_integers(const Kernels& k, const Case& c, const Layer& layer, reference::Generator& random) {
  if (k.row_kind(c.format) != RowKind::q8) return;
  std::vector<float> x(c.inputs);
  for (int i = 0; i < c.inputs; i++) x[i] = float(int(random.byte()) % 255 - 127);
  for (int i = 0; i < c.inputs; i += kGroup) x[i] = i % 64 ? 127.0f : -127.0f;
  const std::vector<float> y = run(k, layer.w, x, 0, 1, 0, layer.w.tiles);
  bool close = true;
  for (int o = 0; o < c.outputs; o++) {
    double sum = layer.bias.empty() ? 0.0 : layer.bias[o], magnitude = std::fabs(sum);
    for (int i = 0; i < c.inputs; i++) {
      const double term = double(x[i]) * layer.executed[size_t(o) * c.inputs + i];
      sum += term;
      magnitude += std::fabs(term);
    }
    close = close && std::fabs(sum - y[o]) <= (layer.packed.view().has_min ? 2e-3 : 2e-6) * magnitude;
  }
  check(close, std::string(k.name) + ", " + c.text() + ": integers are computed exactly");
}

void test_not_finite(const Kernels& k, const Case& c, const Layer& layer, std::vector<float> x) {
  const float inf = std::numeric_limits<float>::infinity();
  x[0] = inf;
  x[c.inputs + c.inputs - 1] = std::numeric_limits<float>::quiet_NaN();
  x[2 * c.inputs + c.inputs / 2] = -inf;
  x[3 * c.inputs] = 3e38f;
  x[4 * c.inputs] = 1e-42f;
  const Linear& w = layer.w;
  const std::vector<float> y = run(k, w, x, 0, 5, 0, w.tiles);
  check(std::isnan(y[size_t(w.tiles) * kTile]), std::string(k.name) + ", " + c.text() + ": NaN stays NaN");
}

}  // namespace

int main() {
  const Kernels* tables[16];
  const int sets = available_kernels(tables, 16);
  const char* kinds[] = {"F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"};
  unsigned seed = 0;
  std::vector<double> worst(sets * 5, 0.0);
  for (const char* kind : kinds)
    for (Format format : {Format::f32, Format::f16, Format::bf16, Format::q8, Format::q4}) {
      const SourceTraits& t = traits(source_kind(kind));
      std::vector<std::pair<int, int>> shapes = {{16, 256}, {70, 512}};
      if (t.block <= 32) shapes.insert(shapes.end(), {{1, 32}, {33, 96}});
      if (t.block == 1) shapes.insert(shapes.end(), {{20, 48}, {17, 33}, {5, 1}});
      for (auto [outputs, inputs] : shapes) {
        const Case c{kind, format, outputs, inputs};
        reference::Generator random(++seed);
        const Layer layer = make_layer(c, random, outputs % 2 == 0, outputs == 70);
        test_packing(c, layer);
        const int rows = outputs == 70 ? 40 : 17;
        const std::vector<float> x = activations(random, rows, inputs);
        for (int s = 0; s < sets; s++) {
          const Kernels& k = *tables[s];
          test_invariance(k, c, layer, x, std::strcmp(k.name, "portable") == 0 ? std::min(rows, 17) : rows);
          const double error = test_closeness(k, c, layer, x, 5);
          worst[s * 5 + static_cast<int>(format)] = std::max(worst[s * 5 + static_cast<int>(format)], error);
          test_exact_integers(k, c, layer, random);
          test_not_finite(k, c, layer, x);
        }
      }
    }
  for (int s = 0; s < sets; s++) {
    std::printf("%-12s error against double precision:", tables[s]->name);
    for (int f = 0; f < 5; f++) std::printf("  %s %.1e", name(Format(f)), worst[s * 5 + f]);
    std::printf("\n");
  }
  return check.finish();
}
