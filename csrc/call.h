// One call of an operator: its arguments checked and turned into a job, whatever the device.
#pragma once

#include <optional>
#include <vector>

#include "job.h"
#include "tensor_checks.h"

namespace mbf {

// Everything a call may bring, gathered and checked step by step. Nothing is written before all
// of it is known to be good.
class Call {
 public:
  TileJob job{};
  bool float64 = false;
  // What may come from the device, if the call is for one; see cuda::DeviceJob.
  const double* device_damping = nullptr;
  bool damping_per_tensor = false;
  bool target_per_tensor = false;
  const double* controls = nullptr;

  Call(Place place, int64_t block_size);

  const Place& place() const { return place_; }

  void set_blocks(std::vector<int64_t> counts);
  void set_blocks_of(const TensorList& tensors);
  void set_stats(const Tensor& stats, bool written);
  // Without statistics the inverse alone tells the precision: bfloat16 belongs to float32.
  void set_inverse(const Tensor& inverse, bool written, bool stats_known);
  void set_info(const Tensor& info);
  void set_tallies(const Tensor& tallies, bool written);
  void set_damping(const Tensor& values, bool relative, bool debias);
  TileRange range(const char* name, const std::vector<int64_t>& ends) const;
  // Gradients alone, in any format that goes with the statistics.
  void set_grads(const TensorList& tensors);
  void set_step(const TensorList& param_list, const TensorList& grad_list,
                const TensorList& momentum_list, double lr, double momentum, double weight_decay);
  // With target norms a step takes two passes, with room for P M between them.
  void set_targets(const std::optional<Tensor>& target_norms,
                   const std::optional<Tensor>& directions, const std::optional<Tensor>& norms,
                   bool refresh, double momentum_correction);
  void set_controls(const std::optional<Tensor>& controls);
  // What needs all the memory of the call.
  void check_memory() { memory_.check(place_); }

 private:
  int64_t tiles() const { return starts_.back(); }
  void set_grads(const TensorList& tensors, const std::vector<Format>& allowed);
  std::vector<BlockView> views(const char* name, const TensorList& tensors,
                               const std::vector<Format>& allowed, bool may_be_absent);
  // One value, or one per tensor.
  void check_per_tensor(const char* name, const Tensor& values, const Place& where) const;
  std::vector<double> per_tensor(const char* name, const Tensor& values) const;

  Place place_;
  int64_t d_;
  std::vector<int64_t> blocks_;
  std::vector<int64_t> starts_;
  std::vector<BlockView> params_, grads_, momenta_;
  std::vector<double> damping_, targets_;
  MemoryMap memory_;
};

// The dtype of statistics or dense matrices: float32, or float64 where that is served.
ScalarType stats_dtype(const char* name, const Tensor& tensor, const Place& place);

// The size of square matrices (..., d, d) within the kernels' range.
int64_t matrix_size(const Tensor& matrices, const Place& place);

}  // namespace mbf
