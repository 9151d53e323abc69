// A job is what the kernels are asked to do, in plain pointers and scalars. No torch here.
#pragma once

#include <cstdint>

#include "core/step.h"

namespace mbf {

// Blocks in a tile: the same element of 16 neighbouring blocks fills one 64-byte cache line.
constexpr int kTileBlocks = 16;

// The largest block size the kernels serve.
constexpr int kMaxBlock = 64;

enum class Format : int8_t { Float32, Float64, BFloat16, Float16 };

// One tensor seen as blocks. Element e of block b is at
//   (b / inner) * outer_stride + (b % inner) * inner_stride + e * element_stride,
// counted in elements. In a contiguous tensor `inner` is the number of blocks, inner_stride is d
// and element_stride is 1.
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

// What is kept beside the G of one tile.
struct Tally {
  double weight;  // the average that the same updates make of ones: G / weight has no bias
  double trace;   // of G / weight, summed over the blocks where it is finite
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

// A request to update, invert and step the tiles of many tensors. Tensor t owns tiles tile_start[t]
// to tile_start[t + 1] - 1, the last of them padded with blocks of zeros. A tensor whose gradient
// is absent (its view has no data) is skipped. A job that only inverts has no gradients and skips
// none.
//
// Pointers are to memory of the device that runs the job. Only tile_start, blocks and the arrays of
// views are always on the host; a PerTensor says where its values are. The comment of a pointer
// names the operations that need it.
struct TileJob {
  int block_size;
  bool float64;  // G and the arithmetic are in float64, otherwise in float32
  int64_t tensors;
  const int64_t* tile_start;  // tensors + 1
  const int64_t* blocks;      // per tensor

  TileRange update;  // in these tiles, G <- beta G + (1 - beta) D D^T
  TileRange invert;  // in these tiles, P <- (G + damping I)^-1; with debias, of G / weight
  bool step;         // in all tiles, M <- momentum M + D;  W <- W - lr (P M + weight_decay W)

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

  // With target norms the step takes two passes. The first stores P M in `directions`, block after
  // block and padded to whole tiles, and its squared norms in `norms`, where blocks that are not
  // finite do not count. The second moves the parameters. `norms` is zero before the first step.
  PerTensor target_norms;   // values is null if there are none
  void* directions;         // [direction_tiles, 16, d]
  int64_t direction_tiles;  // at least as many as the largest tensor has; on a GPU all tiles
  TileNorms* norms;         // [tiles]
  // Before using the target norms, set them to the norms of Adam's step, which is
  // M_hat / (sqrt(v_hat) + 1e-8) clipped to [-1, 1]. M_hat is momentum_correction M, v_hat the
  // diagonal of G / weight.
  bool refresh_targets;

  // [lr, momentum_correction, update, invert] in device memory, or null; only on a GPU. The first
  // two replace the scalars of that name. A zero in one of the others disables that operation.
  const double* controls;

  bool rescales() const { return step && target_norms.values != nullptr; }
  bool looks_ahead() const { return scalars.nesterov != 0; }
};

// A request to invert dense matrices, stored one after the other.
struct DenseJob {
  int block_size;
  bool float64;
  int64_t count;
  const void* matrices;  // [count, d, d]; only the lower triangles are read
  void* inverses;        // [count, d, d]
  int32_t* info;         // [count]
  double damping;
};

}  // namespace mbf
