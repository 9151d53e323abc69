// The instruction sets the kernels are compiled for and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "../job.h"

namespace mbf {

// The kernels of one instruction set and one number format, over a range of tiles. Ranges may be
// given to different threads: a tile's result does not depend on the range it is in.
struct Kernels {
  void (*run_tiles)(const TileJob&, int64_t first, int64_t last);
  void (*apply_directions)(const TileJob&, int64_t first, int64_t last);
  void (*invert_dense)(const DenseJob&, int64_t first, int64_t last);  // in units of 16 matrices
};

struct KernelSet {
  const char* isa;
  int lanes;  // float32 blocks in one vector
  Kernels f32;
  Kernels f64;
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
