// From a job to kernel launches: which kernel, how many thread blocks, with what parameters.
//
// Plain C++ without CUDA: the same code runs on a machine that has none, under sanitizers.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.h"

namespace mbf::cuda {

enum class Kernel : int32_t {
  Step,     // step alone
  Run,      // any of update, invert and step; of blocks above kMaxThreadBlock, not invert
  Refresh,  // invert, and update if both are due, of blocks above kMaxThreadBlock
  Damping,  // absolute damping from relative damping
  Apply,    // second pass of a rescaled step
  Dense,    // spd_inverse
  // Blocks that rows share:
  SharedStep,     // a step
  SharedFirst,    // the first pass of a rescaled step
  SharedScale,    // the factors of a rescaled step, from the norms of its first pass
  SharedApply,    // its second pass
  SharedUpdate,   // sums of D D^T
  SharedAverage,  // G, from the sums over parts of the rows
};

struct Launch {
  Kernel kernel;
  int32_t block_size;  // chooses among the instances of a kernel
  uint32_t grid;
  uint32_t threads;
  uint32_t shared_bytes;  // dynamic
  std::vector<unsigned char> parameters;
};

// The launches in the order they must run. Empty if there is nothing to do. `absolute_damping` is
// device memory for damping_room(job) values.
std::vector<Launch> plan(const TileJob& job, double* absolute_damping);
std::vector<Launch> plan(const DenseJob& job);

// One double per tensor if damping is relative and something is inverted, otherwise 0.
int64_t damping_room(const TileJob& job);

}  // namespace mbf::cuda
