// One call of an operator: its arguments checked and turned into a job, whatever the device.
#pragma once

#include <optional>
#include <vector>

#include "../job.h"
#include "memory_map.h"

namespace mbf {

// Gathers and checks the arguments of a call one by one. Nothing is written before checked() has
// found all of them good. The job points into the call.
class Call {
 public:
  // `layout` is int64 [2, tensors + 1] on the host: the first tile of each tensor and one past the
  // last tile; the blocks of each tensor.
  Call(Place place, int64_t block_size, const Tensor& layout);

  const Place& place() const { return place_; }

  void set_stats(const Tensor& stats, const Tensor& tallies, bool written);
  // Without statistics the inverse alone tells the precision: bfloat16 belongs to float32.
  void set_inverse(const Tensor& inverse, bool written);
  void set_update(const char* name, const std::vector<int64_t>& tiles, double beta);
  void set_inversion(const char* name, const std::vector<int64_t>& tiles, const Tensor& info,
                     const Tensor& damping, bool relative, bool debias);
  // Gradients alone, in any format that goes with the statistics.
  void set_grads(const TensorList& tensors);
  void set_step(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                const std::vector<double>& scalars);
  // With target norms a step takes two passes, with room for P M between them.
  void set_targets(const std::optional<Tensor>& target_norms, bool refresh,
                   const std::optional<Tensor>& directions, const std::optional<Tensor>& norms);
  void set_controls(const std::optional<Tensor>& controls);

  // The job, once what needs all the memory of the call has been checked too.
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

// The dtype of statistics or dense matrices: float32, or float64 where that is served.
ScalarType stats_dtype(const char* name, const Tensor& tensor, const Place& place);

// The size of square matrices (..., d, d) within the kernels' range.
int64_t matrix_size(const Tensor& matrices, const Place& place);

}  // namespace mbf
