// The parameters of the kernels for blocks that rows share, and the tiles that they work on.
//
// Plain C++, shared by the kernels and by shared_plan.cpp.
#pragma once

#include <algorithm>

#include "../shared_job.h"
#include "parameters.h"

namespace mbf::cuda {

constexpr int kQuad = 4;   // elements of a 16-byte load
constexpr int kOctet = 8;  // rows and columns of a patch of D^T D that a thread sums

// Threads per thread block of a step; each has the sums of kThreadRows rows and one quad of
// columns.
constexpr int kStepThreads = 128;
constexpr int kThreadRows = 8;

// Threads per thread block of an update: seven for each patch of a piece of 64 columns.
constexpr int kUpdateThreads = 256;

// Floats of the rows that a thread block has in shared memory.
constexpr int kRowsRoom = 4608;

// The most columns of a strip of several pieces, padding included.
constexpr int kPiecesStrip = 64;

// Rows of P in shared memory at a time.
constexpr int kDepth = 16;

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// The distance between rows in shared memory, in floats: an odd number of quads, so that threads
// which read the same quad of eight rows access different banks.
constexpr int shared_stride(int columns) { return (columns / kQuad | 1) * kQuad; }

// A thread block works on a strip of columns: one piece, or several narrow ones. In shared memory
// pieces are padded to whole quads or octets.
struct Strip {
  int padded;  // columns of a piece, padding included
  int pieces;  // of a strip

  constexpr Strip(int64_t width, int64_t pieces_of_layer, int unit)
      : padded(static_cast<int>(round_up(width, unit))),
        pieces(static_cast<int>(
            std::min<int64_t>(pieces_of_layer, std::max(1, kPiecesStrip / padded)))) {}
  constexpr int columns() const { return padded * pieces; }
  constexpr int stride() const { return shared_stride(columns()); }
};

// Threads of a step that have the same columns; each takes kThreadRows rows.
constexpr int row_groups(const Strip& strip) {
  const int room = kRowsRoom / (kThreadRows * strip.stride());
  return std::min(kStepThreads / (strip.columns() / kQuad), room);
}
constexpr int step_rows(const Strip& strip) { return kThreadRows * row_groups(strip); }

constexpr int patches_of_piece(int padded) { return padded / kOctet * (padded / kOctet + 1) / 2; }
constexpr int kPatchElements = kOctet * kOctet;
// The floats that a part of the rows contributes to one G: its patches, and a count of pieces of
// rows that were left out. A quad, for alignment.
constexpr int64_t partial_floats(int padded) {
  return patches_of_piece(padded) * kPatchElements + kQuad;
}

// Elements of each patch that go through shared memory at a time when they are summed.
constexpr int kPatchSlice = 2 * kOctet;
static_assert(kPatchSlice * kUpdateThreads <= kRowsRoom);

constexpr bool strips_fit() {
  for (int width = 1; width <= kMaxSharedBlock; ++width) {
    for (int pieces : {1, 2, 1000}) {
      const Strip step(width, pieces, kQuad);
      const Strip update(width, pieces, kOctet);
      if (row_groups(step) < 1 || step.columns() > kMaxSharedBlock) return false;
      if (step_rows(step) * step.stride() > kRowsRoom) return false;
      if (patches_of_piece(update.padded) * update.pieces > kUpdateThreads) return false;
      if (kRowsRoom / update.stride() < 1 || update.columns() > kMaxSharedBlock) return false;
    }
  }
  return true;
}
static_assert(strips_fit(), "a width whose tile does not fit");

// The strides of a RowView, in elements. row_inner is 0 if all rows are row_stride apart, inner is
// 0 if columns are contiguous.
struct RowStrides {
  int64_t group_stride;
  int64_t row_inner, row_outer_stride, row_stride;
  int64_t inner, outer_stride, inner_stride;
};

// A weight and its bias; null where one is absent or does not move.
struct RowPointers {
  void* weight;
  void* bias;
};

// A layer as the kernels see it.
struct SharedShape {
  int64_t rows;  // of each group
  int64_t columns;
  int64_t pieces;
  int64_t first_block;
  int64_t matrix;  // offset of the first one in G and P
  int32_t width;
  bool bias;   // the last column is that of a bias
  bool quads;  // weights can be loaded and stored 16 bytes at a time
};

// Tasks of a layer are counted group by group, tile of rows by tile, strip by strip. An entry has
// those from `task` on; a layer with more than a launch takes has several entries.
struct SharedStepEntry {
  RowPointers params, grads, momenta, squares;
  SharedShape shape;
  int64_t task;
  int64_t directions;  // its first element there
  int64_t norms;       // those of task 0
  uint32_t first_unit;
  uint32_t layer;
  Natural natural[8];  // weight and bias of params, grads, momenta, squares
};

struct SharedUpdateEntry {
  RowPointers grads, squares;
  SharedShape shape;
  int64_t task;
  int64_t partials;  // where those of the layer's block 0 would be
  int64_t part_rows;
  int64_t parts;  // of the rows; a single one goes to G at once
  uint32_t first_unit;
  uint32_t layer;
  Natural natural[4];
};

// Blocks of one layer whose partial sums are added up.
struct SharedAverageEntry {
  SharedShape shape;
  int64_t block;  // the first, in the layer
  int64_t partials;
  int64_t parts;
  uint32_t first_unit;
};

struct SharedScaleEntry {
  int64_t norms;
  int64_t count;
  uint32_t layer;
};

// Squared norms over the rows and columns of one task.
struct TaskNorms {
  double direction;  // of M P
  double adam;       // of Adam's step
};

struct SharedStepHeader {
  const float* inverse;
  float* directions;       // with target norms, otherwise null
  TaskNorms* norms;        // per task
  double* scales;          // per layer, target norm / norm of M P
  const double* controls;  // as in RunHeader, or null
  const double* weights;   // per block
  StepScalars<double> scalars;
  bool refresh_targets;
};

struct SharedScaleHeader {
  const TaskNorms* norms;
  double* target_norms;
  double* scales;
  bool target_per_layer;
  bool refresh_targets;
};

struct SharedUpdateHeader {
  float* stats;
  double* weights;
  int64_t* left_out;
  float* partials;
  int64_t first, last;  // blocks
  double beta;
};

using SharedStepParameters = Parameters<SharedStepHeader, SharedStepEntry, RowStrides>;
using SharedScaleParameters = Parameters<SharedScaleHeader, SharedScaleEntry>;
using SharedUpdateParameters = Parameters<SharedUpdateHeader, SharedUpdateEntry, RowStrides>;
using SharedAverageParameters = Parameters<SharedUpdateHeader, SharedAverageEntry, RowStrides>;

static_assert(sizeof(SharedStepParameters) <= kParameterBytes);
static_assert(sizeof(SharedScaleParameters) <= kParameterBytes);
static_assert(sizeof(SharedUpdateParameters) <= kParameterBytes);
static_assert(sizeof(SharedAverageParameters) <= kParameterBytes);

}  // namespace mbf::cuda
