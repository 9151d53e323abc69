// One call of an operator on blocks that rows share: checks its arguments and turns them into a
// job.
#pragma once

#include <optional>
#include <vector>

#include "memory_map.h"
#include "row_views.h"

namespace mbf {

// Collects and checks the arguments one by one. Nothing may be written before a job was returned.
// The jobs point into the call.
class SharedCall {
 public:
  SharedCall(Place place, const Tensor& layout)
      : place_(place), layout_(layout, place.cuda ? kMaxSharedBlock : kMaxCpuSharedBlock) {}

  const Place& place() const { return place_; }

  // Flat tensors with all matrices, and kMatrixSlack elements beyond them.
  void set_stats(const Tensor& stats, const Tensor& weights, const Tensor& left_out);
  void set_inverse(const Tensor& inverse);
  void set_update(const TensorList& grads, const TensorList& squares,
                  const std::vector<int64_t>& blocks, double beta);
  void set_step(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                const std::vector<double>& scalars);
  void set_targets(const std::optional<Tensor>& target_norms, bool refresh,
                   const TensorList& squares, const std::optional<Tensor>& weights,
                   const std::optional<Tensor>& directions);
  void set_controls(const std::optional<Tensor>& controls);

  // Make the checks that need all tensors of the call.
  const SharedUpdate& checked_update();
  const SharedStep& checked_step();

 private:
  ScalarType check_matrices(const char* name, const Tensor& matrices);
  std::vector<RowTensor> views(const char* name, const TensorList& tensors,
                               const std::vector<Format>& allowed, bool may_be_absent,
                               bool written);
  int64_t layers() const { return static_cast<int64_t>(layout_.layers.size()); }

  Place place_;
  RowLayout layout_;
  SharedUpdate update_{};
  SharedStep step_{};
  std::vector<RowTensor> params_, grads_, momenta_, squares_;
  MemoryMap memory_;
};

}  // namespace mbf
