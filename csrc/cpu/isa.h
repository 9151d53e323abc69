// The instruction sets the kernels are compiled for, and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "../job.h"

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

struct KernelSet {
  const char* isa;
  EntryPoints f32;
  EntryPoints f64;

  const EntryPoints& of(bool float64) const { return float64 ? f64 : f32; }
};

// One per translation unit. setup.py decides which of them are in a build.
KernelSet baseline_kernels();
KernelSet avx2_kernels();
KernelSet avx2_wide_kernels();
KernelSet avx512_kernels();

// The instruction sets compiled into this binary, from the least to the most demanding.
std::vector<std::string> compiled_isas();

// Those of them that this machine can run.
std::vector<std::string> runnable_isas();

// The kernels in use: the most demanding that this machine can run, unless MBF_CPU_ISA or
// select_isa has chosen others.
const KernelSet& current_kernels();
void select_isa(const std::string& name);

}  // namespace mbf
