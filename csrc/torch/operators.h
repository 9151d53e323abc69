// The operators, written once for all devices: each checks its arguments, turns them into a job and
// runs it.
//
// A `Device` has three static functions:
//   Place place(tensor)           where a call runs, given its first state tensor
//   void run(job, place, tensor)  runs a job there; `tensor` is any tensor at that place
//   void prepare(tensor)          is called with a new result before it is written
#pragma once

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "call.h"
#include "shared_call.h"

namespace mbf {

template <class Device>
std::tuple<Tensor, Tensor> spd_inverse(Tensor matrices, double damping) {
  const Place place = Device::place(matrices);
  const int64_t d = matrix_size(matrices, place);
  check_damping(damping);
  const ScalarType type = stats_dtype("matrices", matrices, place);
  const Tensor input = torch::stable::contiguous(matrices);
  Tensor inverse = torch::stable::new_empty(input, input.sizes());
  Device::prepare(inverse);
  const auto sizes = matrices.sizes();
  const std::vector<int64_t> batch(sizes.begin(), sizes.end() - 2);
  Tensor info = torch::stable::new_empty(input, batch, ScalarType::Int);
  const DenseJob job{static_cast<int>(d),
                     type == ScalarType::Double,
                     input.numel() / (d * d),
                     input.data_ptr(),
                     inverse.data_ptr(),
                     static_cast<int32_t*>(info.data_ptr()),
                     damping};
  Device::run(job, place, input);
  return {inverse, info};
}

template <class Device>
void update_(const Tensor& stats, const Tensor& tallies, const TensorList& grads,
             const Tensor& layout, int64_t block_size, const std::vector<int64_t>& tiles,
             double beta) {
  Call call(Device::place(stats), block_size, layout);
  call.set_stats(stats, tallies, true);
  call.set_grads(grads);
  call.set_update("tiles", tiles, beta);
  Device::run(call.checked(), call.place(), stats);
}

template <class Device>
void invert_(const Tensor& stats, const Tensor& tallies, const Tensor& inverse, const Tensor& info,
             const Tensor& layout, int64_t block_size, const std::vector<int64_t>& tiles,
             const Tensor& damping, bool relative, bool debias) {
  Call call(Device::place(stats), block_size, layout);
  call.set_stats(stats, tallies, false);
  call.set_inverse(inverse, true);
  call.set_inversion("tiles", tiles, info, damping, relative, debias);
  Device::run(call.checked(), call.place(), stats);
}

template <class Device>
void step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
           const Tensor& inverse, const Tensor& layout, int64_t block_size,
           const std::vector<double>& scalars, std::optional<Tensor> target_norms,
           std::optional<Tensor> directions, std::optional<Tensor> norms,
           std::optional<Tensor> controls) {
  Call call(Device::place(inverse), block_size, layout);
  call.set_inverse(inverse, false);
  call.set_step(params, grads, momenta, scalars);
  call.set_targets(target_norms, false, directions, norms);
  call.set_controls(controls);
  Device::run(call.checked(), call.place(), inverse);
}

template <class Device>
void fused_step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                 const Tensor& stats, const Tensor& tallies, const Tensor& inverse,
                 const Tensor& info, const Tensor& layout, int64_t block_size,
                 const std::vector<double>& scalars, const std::vector<int64_t>& update,
                 double beta, const std::vector<int64_t>& invert, const Tensor& damping,
                 bool relative, bool debias, std::optional<Tensor> target_norms,
                 bool refresh_targets, std::optional<Tensor> directions,
                 std::optional<Tensor> norms, std::optional<Tensor> controls) {
  Call call(Device::place(stats), block_size, layout);
  call.set_stats(stats, tallies, true);
  call.set_inverse(inverse, true);
  call.set_step(params, grads, momenta, scalars);
  call.set_update("update", update, beta);
  call.set_inversion("invert", invert, info, damping, relative, debias);
  call.set_targets(target_norms, refresh_targets, directions, norms);
  call.set_controls(controls);
  Device::run(call.checked(), call.place(), stats);
}

template <class Device>
void shared_update_(const Tensor& stats, const Tensor& weights, const Tensor& left_out,
                    const TensorList& grads, const TensorList& squares, const Tensor& layout,
                    const std::vector<int64_t>& blocks, double beta) {
  SharedCall call(Device::place(stats), layout);
  call.set_stats(stats, weights, left_out);
  call.set_update(grads, squares, blocks, beta);
  Device::run(call.checked_update(), call.place(), stats);
}

// With check_only nothing is done, so that an update before the step can be left undone too.
template <class Device>
void shared_step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                  const Tensor& inverse, const Tensor& layout, const std::vector<double>& scalars,
                  const TensorList& squares, std::optional<Tensor> weights,
                  std::optional<Tensor> target_norms, bool refresh_targets,
                  std::optional<Tensor> directions, bool check_only,
                  std::optional<Tensor> controls) {
  SharedCall call(Device::place(inverse), layout);
  call.set_inverse(inverse);
  call.set_step(params, grads, momenta, scalars);
  call.set_targets(target_norms, refresh_targets, squares, weights, directions);
  call.set_controls(controls);
  const SharedStep& job = call.checked_step();
  if (!check_only) Device::run(job, call.place(), inverse);
}

// For the body of STABLE_TORCH_LIBRARY_IMPL.
template <class Device, class Library>
void implement_operators(Library& m) {
  m.impl("spd_inverse", TORCH_BOX(&spd_inverse<Device>));
  m.impl("update_", TORCH_BOX(&update_<Device>));
  m.impl("invert_", TORCH_BOX(&invert_<Device>));
  m.impl("step_", TORCH_BOX(&step_<Device>));
  m.impl("fused_step_", TORCH_BOX(&fused_step_<Device>));
  m.impl("shared_update_", TORCH_BOX(&shared_update_<Device>));
  m.impl("shared_step_", TORCH_BOX(&shared_step_<Device>));
}

}  // namespace mbf
