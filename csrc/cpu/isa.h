// The instruction sets the kernels are compiled for and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "../job.h"

namespace mbf {

// A job as the driver hands it to the kernels: one pass, and the driver's scratch for it. In the
// job of a pass the damping is absolute.
struct TilePass {
  TileJob job{};
  bool stream_inverse = false;     // write P past the cache, which it is too large for
  int64_t first_direction = 0;     // the tile whose directions come first in job.directions
  const double* scales = nullptr;  // per tensor, second pass: target norm / norm of P M
};

// The entry points of one instruction set and one precision, over a range of tiles. Ranges may be
// given to different threads: a tile's result does not depend on the range it is in.
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

// One per translation unit; which ones exist in this build is decided by setup.py.
KernelSet baseline_kernels();
KernelSet avx2_kernels();
KernelSet avx2_wide_kernels();
KernelSet avx512_kernels();

// Names compiled into this binary, from the least to the most demanding.
std::vector<std::string> compiled_isas();

// The compiled ones this machine can run.
std::vector<std::string> runnable_isas();

// What runs now: the most demanding runnable level, or what MBF_CPU_ISA or select_isa forced.
const KernelSet& current_kernels();
void select_isa(const std::string& name);

}  // namespace mbf
