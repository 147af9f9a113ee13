// From a file's tensor to the tiles that kernels read.
#pragma once
#include <memory>

#include "kernels/kernels.h"
#include "weights/arena.h"
#include "weights/source.h"

namespace forerun {

// A matrix as the file holds it: rows of `inputs` weights, one after another.
struct Source {
  SourceKind kind;
  const uint8_t* raw;
  size_t raw_bytes;
};

// The format that executes a kind without widening it: 4-bit kinds as q4, other quantised kinds as q8, floats as they are.
Format automatic_format(SourceKind kind);

class PackedLinear {
 public:
  PackedLinear() = default;
  // Room in the arena for a layer that will be packed from `kind` to `execution`; pack_tiles fills it.
  // bias: [outputs] in the order of the layer's outputs, or null.
  // Throws std::invalid_argument when the kind cannot hold rows of `inputs`.
  PackedLinear(std::shared_ptr<Arena> arena, SourceKind kind, Format execution, int outputs, int inputs, const float* bias = nullptr);

  bool empty() const { return arena_ == nullptr; }
  const Linear& view() const { return view_; }
  size_t bytes() const { return view_.tile_bytes * static_cast<size_t>(view_.tiles); }

  // Fills tiles [tile_begin, tile_end); threads may fill disjoint ranges at once. Output i is the source's row row_order[i],
  // or i without an order. Throws std::invalid_argument when the source is too short or of another kind than planned, and
  // std::overflow_error when it holds a number that is not finite.
  void pack_tiles(const Source& source, const int32_t* row_order, int tile_begin, int tile_end);

  // The same for a layer planned for F32: output i is output rows[i] of another layer, as that executes it.
  // rows: [outputs], of the other's. Throws std::invalid_argument when the layers do not fit.
  void take_tiles(const PackedLinear& from, const int32_t* rows, int tile_begin, int tile_end);

  // Weights of output `row` as floats. out: [inputs].
  void unpack_row(int row, float* out) const;

 private:
  std::shared_ptr<Arena> arena_;
  SourceKind kind_ = SourceKind::F32;
  Linear view_{};
  uint8_t* data_ = nullptr;
  float* unit_ = nullptr;
};

// The whole layer at once.
PackedLinear pack(std::shared_ptr<Arena> arena, const Source& source, Format execution, int outputs, int inputs,
                  const int32_t* row_order = nullptr, const float* bias = nullptr);

}  // namespace forerun
