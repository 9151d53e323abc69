// What the kernels are asked to do, in plain pointers and scalars: no torch here.
#pragma once

#include <cstdint>

#include "core/step.h"

namespace mbf {

// Blocks in a tile: the same element of 16 neighbouring blocks fills one 64-byte cache line.
constexpr int kTileBlocks = 16;

// The largest block the small-block kernels take.
constexpr int kMaxBlock = 64;

enum class Format : int8_t { Float32, Float64, BFloat16, Float16 };

// One tensor seen as blocks. Element e of block b is at
//   (b / inner) * outer_stride + (b % inner) * inner_stride + e * element_stride,
// counted in elements. Contiguous blocks have element_stride 1 and inner_stride d throughout.
struct BlockView {
  void* data;
  Format format;
  bool contiguous;
  int64_t inner;
  int64_t outer_stride;
  int64_t inner_stride;
  int64_t element_stride;
};

// Tiles first .. last - 1.
struct TileRange {
  int64_t first = 0;
  int64_t last = 0;
  constexpr bool empty() const { return first >= last; }
  constexpr bool contains(int64_t tile) const { return first <= tile && tile < last; }
};

// What is known of the G of one tile, beside G itself.
struct Tally {
  double weight;  // the average that beta and (1 - beta) make of ones: G / weight has no bias
  double trace;   // of G / weight, summed over the finite blocks
};

// Squared norms over the blocks of one tile.
struct TileNorms {
  double direction;  // of P M
  double adam;       // of Adam's step
};

// One value for each tensor, or one for all of them.
struct PerTensor {
  double* values;
  bool one_for_all;
  bool on_device;  // the values are in device memory: only kernels can read them

  constexpr double of(int64_t tensor) const { return values[one_for_all ? 0 : tensor]; }
};

// A request: one pass over the tiles of many tensors. Tensor t owns tiles tile_start[t] to
// tile_start[t + 1] - 1, the last of them padded with blocks of zeros. A tensor whose gradient is
// absent (no data) is left alone by update and step and, in a job with a step, by invert.
//
// All pointers are to memory of the device the job is for, except tile_start, blocks, the views
// themselves and a PerTensor that says so.
struct TileJob {
  int block_size;
  bool float64;  // the format of G and of the arithmetic; otherwise float32
  int64_t tensors;
  const int64_t* tile_start;  // tensors + 1
  const int64_t* blocks;      // per tensor

  TileRange update;  // of these tiles, G <- beta G + (1 - beta) D D^T
  TileRange invert;  // of these tiles, P <- (G + damping I)^-1, of G / weight if debias is set
  bool step;         // of all tiles, M <- momentum M + D;  W <- W - lr (P M + weight_decay W)

  const BlockView* params;   // step
  const BlockView* grads;    // update, step
  const BlockView* momenta;  // step

  void* stats;            // [tiles, T, 16]
  void* inverse;          // [tiles, T, 16]
  Format inverse_format;  // that of the statistics, or BFloat16
  Tally* tallies;         // [tiles], update; invert with debias or relative_damping
  int32_t* info;          // [tiles, 16], invert

  double beta;
  PerTensor damping;      // invert
  bool relative_damping;  // damping is in units of the mean diagonal of G / weight of the tensor
  bool debias;
  StepScalars<double> scalars;

  // With target norms the step takes two passes: the first leaves P M in `directions`, block by
  // block as in the parameters but padded to whole tiles, with its squared norm per tile; the
  // second applies it. Blocks that are not finite do not count in a norm.
  PerTensor target_norms;   // values is null without them
  void* directions;         // [direction_tiles, 16, d]
  int64_t direction_tiles;  // those of the largest tensor or more; on a GPU all
  TileNorms* norms;         // [tiles]
  // Before use, set each target norm to that of Adam's step, clip(M_hat / (sqrt(v_hat) + 1e-8)) to
  // [-1, 1], with M_hat = momentum_correction M and v_hat the diagonal of G / weight.
  bool refresh_targets;

  // [lr, momentum_correction, update, invert] in device memory, or null: they replace the scalars,
  // and a zero disables update or invert. Only on a GPU.
  const double* controls;

  bool rescales() const { return step && target_norms.values != nullptr; }
};

// Ordinary dense matrices, one after the other.
struct DenseJob {
  int block_size;
  bool float64;
  int64_t count;
  const void* matrices;  // [count, d, d], the lower triangles are read
  void* inverses;        // [count, d, d]
  int32_t* info;         // [count]
  double damping;
};

}  // namespace mbf
