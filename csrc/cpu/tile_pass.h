// What the driver asks of the kernels for tiles.
#pragma once

#include "../job.h"
#include "precisions.h"

namespace mbf {

// One pass of a job, as the driver gives it to the kernels, with the driver's scratch. The damping
// in its job is absolute.
struct TilePass {
  TileJob job{};
  bool stream_inverse = false;     // write P past the cache, because it does not fit
  int64_t first_direction = 0;     // the tile at the start of job.directions
  const double* scales = nullptr;  // in the second pass, target norm / norm of P M per tensor
};

// The entry points of one instruction set and one precision, for tiles first .. last - 1. Different
// threads may take different ranges: a tile's result does not depend on its range.
struct EntryPoints {
  void (*run_tiles)(const TilePass&, int64_t first, int64_t last);
  void (*apply_directions)(const TilePass&, int64_t first, int64_t last);
  void (*invert_dense)(const DenseJob&, int64_t first, int64_t last);  // in units of 16 matrices
};

// One per translation unit. setup.py decides which of them are in a build.
Precisions<EntryPoints> baseline_kernels();
Precisions<EntryPoints> avx2_kernels();
Precisions<EntryPoints> avx2_wide_kernels();
Precisions<EntryPoints> avx512_kernels();

}  // namespace mbf
