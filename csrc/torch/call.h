// One call of an operator: checks its arguments and turns them into a job, for any device.
#pragma once

#include <optional>
#include <vector>

#include "../job.h"
#include "memory_map.h"

namespace mbf {

// Collects and checks the arguments of a call one by one. Nothing may be written before checked()
// has accepted all of them. The job points into the call.
class Call {
 public:
  // `layout` is int64 [2, tensors + 1] on the host. Its first row has the first tile of each tensor
  // and one past the last tile, its second row the number of blocks of each tensor.
  Call(Place place, int64_t block_size, const Tensor& layout);

  const Place& place() const { return place_; }

  void set_stats(const Tensor& stats, const Tensor& tallies, bool written);
  // In a call without statistics the inverse decides the precision: float64, or float32 if it is
  // float32 or bfloat16.
  void set_inverse(const Tensor& inverse, bool written);
  void set_update(const char* name, const std::vector<int64_t>& tiles, double beta);
  void set_inversion(const char* name, const std::vector<int64_t>& tiles, const Tensor& info,
                     const Tensor& damping, bool relative, bool debias);
  // Gradients of a call without a step, in any format that goes with the statistics.
  void set_grads(const TensorList& tensors);
  void set_step(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                const std::vector<double>& scalars);
  // With target norms a step takes two passes; `directions` holds P M between them.
  void set_targets(const std::optional<Tensor>& target_norms, bool refresh,
                   const std::optional<Tensor>& directions, const std::optional<Tensor>& norms);
  void set_controls(const std::optional<Tensor>& controls);

  // Makes the checks that need all tensors of the call, then returns the job.
  const TileJob& checked();

 private:
  int64_t tiles() const { return job_.tile_start[job_.tensors]; }
  TileRange range(const char* name, const std::vector<int64_t>& ends) const;
  void set_grads(const TensorList& tensors, const std::vector<Format>& allowed);
  std::vector<BlockView> views(const char* name, const TensorList& tensors,
                               const std::vector<Format>& allowed, bool may_be_absent);
  PerTensor per_tensor(const char* name, const Tensor& values, const Place& where) const;

  TileJob job_{};
  Place place_;
  int64_t d_;
  bool stats_known_ = false;
  std::vector<BlockView> params_, grads_, momenta_;
  MemoryMap memory_;
};

// The dtype of statistics or dense matrices: float32, or float64 where the kernels serve it.
ScalarType stats_dtype(const char* name, const Tensor& tensor, const Place& place);

// The scalars of a step from the values of an argument.
StepScalars<double> step_scalars(const std::vector<double>& values);

// [lr, momentum_correction, update, invert] on the device; refused on a CPU.
const double* check_controls(const Tensor& controls, const Place& place);

// The size d of square matrices (..., d, d), if the kernels serve it.
int64_t matrix_size(const Tensor& matrices, const Place& place);

}  // namespace mbf
