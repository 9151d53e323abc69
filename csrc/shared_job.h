// What the kernels are asked to do with blocks that rows share. No torch here.
//
// A layer is seen as rows: the outputs of a linear layer, the filters of a convolution, or all of
// its kernels. A row ends with the element of the bias, if that is joined. Rows are cut into pieces
// of `width` columns, the last of which may be shorter. All rows of a group share one G and one P
// for each piece.
#pragma once

#include "job.h"

namespace mbf {

// The widest piece that the CUDA kernels serve, and that the CPU kernels do: 32 channels of 3 x 3.
constexpr int kMaxSharedBlock = 128;
constexpr int kMaxCpuSharedBlock = 288;

// Elements that must follow the last matrix in memory, because vectors are loaded whole.
constexpr int kMatrixSlack = 16;

// One tensor seen as rows. Column c of row r of group g is at
//   g * group_stride + (r / row_inner) * row_outer_stride + (r % row_inner) * row_stride +
//   (c / inner) * outer_stride + (c % inner) * inner_stride,
// counted in elements.
struct RowView {
  void* data;
  Format format;
  int64_t columns;
  int64_t group_stride;
  int64_t row_inner, row_outer_stride, row_stride;
  int64_t inner, outer_stride, inner_stride;

  constexpr bool contiguous_columns() const { return inner == columns && inner_stride == 1; }
  constexpr int64_t row_offset(int64_t g, int64_t r) const {
    const int64_t group = g * group_stride;
    if (r < row_inner) return group + r * row_stride;  // the usual case: divisions are slow
    return group + (r / row_inner) * row_outer_stride + (r % row_inner) * row_stride;
  }
};

// The tensors of a layer in one argument of a call. A view without data stands for an absent
// gradient; the bias also has none if no bias is joined.
struct RowTensor {
  RowView weight;
  RowView bias;

  constexpr bool absent() const { return weight.data == nullptr && bias.data == nullptr; }
};

struct SharedLayer {
  int64_t groups;
  int64_t rows;     // of each group
  int64_t columns;  // of a row, that of a joined bias included
  int64_t width;
  int64_t pieces;
  bool bias;
  int64_t first_block;  // blocks are counted group by group, piece by piece, over all layers
  int64_t offset;       // of the first matrix in G and P, in elements

  constexpr int64_t blocks() const { return groups * pieces; }
  constexpr int64_t block(int64_t group, int64_t piece) const {
    return first_block + group * pieces + piece;
  }
  constexpr int64_t matrix(int64_t group, int64_t piece) const {
    return offset + (group * pieces + piece) * width * width;
  }
  constexpr int piece_width(int64_t piece) const {
    const int64_t left = columns - piece * width;
    return static_cast<int>(left < width ? left : width);
  }
};

// G <- beta G + (1 - beta) / rows * the sum over rows of D D^T, for blocks first .. last - 1 of the
// layers that have a gradient. A piece of a row whose squares are not finite counts as zero.
struct SharedUpdate {
  bool float64;
  int64_t layers;
  const SharedLayer* layer;
  int64_t first, last;

  const RowTensor* grads;
  const RowTensor* squares;  // v <- beta v + (1 - beta) D^2; null if there are none
  void* stats;               // of each block [width, width]
  double* weights;           // per block, the average that the same updates make of ones
  int64_t* left_out;         // per block, how many pieces of rows did not count
  double beta;
};

// M <- momentum M + D;  W <- W - lr (M P + weight_decay W), in all layers that have a gradient. Of
// a weight and a bias of which one has no gradient, that one stays as it is, but for its momentum.
struct SharedStep {
  bool float64;
  int64_t layers;
  const SharedLayer* layer;

  const RowTensor* params;
  const RowTensor* grads;
  const RowTensor* momenta;
  const void* inverse;  // of each block [width, width]
  StepScalars<double> scalars;

  // As in TileJob: with target norms the step takes two passes.
  PerTensor target_norms;  // values is null if there are none
  void* directions;        // room for the rows of at least the largest layer; on a GPU of all
  int64_t direction_room;  // in elements
  bool refresh_targets;    // first set the target norms to the norms of Adam's step, from:
  const RowTensor* squares;
  const double* weights;

  // [lr, momentum_correction, ...] as in TileJob, or null; only on a GPU.
  const double* controls;

  bool rescales() const { return target_norms.values != nullptr; }
};

// The elements between two rows of directions.
constexpr int64_t direction_stride(const SharedLayer& layer) {
  return (layer.columns + kTileBlocks - 1) / kTileBlocks * kTileBlocks;
}
constexpr int64_t direction_elements(const SharedLayer& layer) {
  return layer.groups * layer.rows * direction_stride(layer);
}

}  // namespace mbf
