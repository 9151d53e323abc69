// What the driver asks of the kernels for blocks that rows share.
#pragma once

#include "../shared_job.h"
#include "precisions.h"

namespace mbf {

// Rows of one group that a task steps, and columns that it takes at a time: as many rows as use a
// vector of P often, as many columns as let memory be read in long runs.
constexpr int kSharedRows = 24;
constexpr int kSharedStrip = 288;
static_assert(kSharedStrip >= kMaxCpuSharedBlock);

constexpr int64_t pieces_of_strip(const SharedLayer& layer) { return kSharedStrip / layer.width; }
constexpr int64_t strips_of(const SharedLayer& layer) {
  return (layer.pieces + pieces_of_strip(layer) - 1) / pieces_of_strip(layer);
}

// Squared norms over the rows of one task.
struct SharedNorms {
  double direction;  // of M P
  double adam;       // of Adam's step
};

// One pass of a step: tasks first_task[l] .. first_task[l + 1] - 1 are those of layer l.
struct SharedPass {
  SharedStep job{};
  const int64_t* first_task = nullptr;
  SharedNorms* norms = nullptr;              // per task, in the first pass of a rescaled step
  const int64_t* direction_start = nullptr;  // per layer, its first element in job.directions
  const double* scales = nullptr;            // in the second pass, target norm / norm of M P
  bool stream_directions = false;            // write them past the cache
};

// The tasks of an update are the strips of all groups.
struct SharedUpdatePass {
  SharedUpdate job{};
  const int64_t* first_task = nullptr;
};

// The entry points of one instruction set and one precision, for tasks first .. last - 1. Different
// threads may take different ranges: a task's result does not depend on its range.
struct SharedEntryPoints {
  void (*step)(const SharedPass&, int64_t first, int64_t last);
  void (*apply_directions)(const SharedPass&, int64_t first, int64_t last);
  void (*update)(const SharedUpdatePass&, int64_t first, int64_t last);
};

// One per translation unit, as those for tiles.
Precisions<SharedEntryPoints> baseline_shared_kernels();
Precisions<SharedEntryPoints> avx2_shared_kernels();
Precisions<SharedEntryPoints> avx2_wide_shared_kernels();
Precisions<SharedEntryPoints> avx512_shared_kernels();

}  // namespace mbf
