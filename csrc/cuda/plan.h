// From a job to kernel launches: which kernel, how many thread blocks, with what parameters.
//
// Plain C++ without CUDA: the same code runs on a machine that has none, under sanitizers.
#pragma once

#include <cstdint>
#include <vector>

#include "parameters.h"

namespace mbf::cuda {

// A TileJob whose tensors are on a device. Its tile_start, blocks and, if device_damping is null,
// damping stay on the host; `scale` is not used.
struct DeviceJob {
  TileJob job;
  const double* device_damping = nullptr;  // one value, or one per tensor
  bool damping_per_tensor = false;         // of device_damping
  bool target_per_tensor = false;          // target_norms has one value per tensor, otherwise one
  const double* controls = nullptr;        // [lr, momentum_correction, update, invert], or null
  double* absolute_damping = nullptr;      // room for one value per tensor, if damping is relative
};

enum class Kernel : int32_t {
  Step,     // step alone
  Run,      // any of update, invert and step
  Damping,  // relative damping in absolute terms
  Apply,    // second pass of a step with target norms
  Dense,    // spd_inverse
};

struct Launch {
  Kernel kernel;
  int32_t block_size;  // chooses among the instances of Step, Run and Dense
  uint32_t grid;
  uint32_t threads;
  uint32_t shared_bytes;  // dynamic
  std::vector<unsigned char> parameters;
};

// The launches in the order they must run. Empty if there is nothing to do.
std::vector<Launch> plan(const DeviceJob& device_job);
std::vector<Launch> plan(const DenseJob& job);

// How many doubles absolute_damping must hold; 0 if it is not used.
int64_t damping_room(const TileJob& job);

}  // namespace mbf::cuda
