// The operators that write into their arguments, once for every device.
//
// `Backend::place(tensor)` is where the call belongs, given its first state tensor;
// `Backend::run(call, tensor)` hands the job over.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "call.h"

namespace mbf {

template <class Backend>
void update_(const Tensor& stats, const Tensor& tallies, const TensorList& grads,
             std::vector<int64_t> blocks, std::vector<int64_t> tiles, int64_t block_size,
             double beta) {
  Call call(Backend::place(stats), block_size);
  check_unit_interval("beta", beta);
  call.set_blocks(std::move(blocks));
  call.set_stats(stats, true);
  call.set_tallies(tallies, true);
  call.set_grads(grads);
  call.job.update = call.range("tiles", tiles);
  call.job.beta = beta;
  call.check_memory();
  Backend::run(call, stats);
}

template <class Backend>
void invert_(Tensor stats, Tensor tallies, Tensor inverse, Tensor info, std::vector<int64_t> blocks,
             std::vector<int64_t> tiles, Tensor damping, int64_t block_size, bool relative,
             bool debias) {
  Call call(Backend::place(stats), block_size);
  call.set_blocks(std::move(blocks));
  call.set_stats(stats, false);
  call.set_tallies(tallies, false);
  call.set_inverse(inverse, true, true);
  call.set_info(info);
  call.set_damping(damping, relative, debias);
  call.job.invert = call.range("tiles", tiles);
  call.check_memory();
  Backend::run(call, stats);
}

template <class Backend>
void step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
           const Tensor& inverse, std::optional<Tensor> target_norms,
           std::optional<Tensor> directions, std::optional<Tensor> norms, int64_t block_size,
           double lr, double momentum, double weight_decay, std::optional<Tensor> controls) {
  Call call(Backend::place(inverse), block_size);
  call.set_blocks_of(params);
  call.set_inverse(inverse, false, false);
  call.set_step(params, grads, momenta, lr, momentum, weight_decay);
  call.set_targets(target_norms, directions, norms, false, 1.0);
  call.set_controls(controls);
  call.check_memory();
  Backend::run(call, inverse);
}

template <class Backend>
void fused_step_(const TensorList& params, const TensorList& grads, const TensorList& momenta,
                 const Tensor& stats, const Tensor& tallies, Tensor inverse, Tensor info,
                 Tensor damping, std::optional<Tensor> target_norms,
                 std::optional<Tensor> directions, std::optional<Tensor> norms,
                 std::vector<int64_t> update, std::vector<int64_t> invert, int64_t block_size,
                 double lr, double momentum, double weight_decay, double beta, bool relative,
                 bool debias, bool refresh_targets, double momentum_correction,
                 std::optional<Tensor> controls) {
  Call call(Backend::place(stats), block_size);
  call.set_blocks_of(params);
  call.set_stats(stats, true);
  call.set_tallies(tallies, true);
  call.set_inverse(inverse, true, true);
  call.set_info(info);
  call.set_step(params, grads, momenta, lr, momentum, weight_decay);
  call.job.update = call.range("update", update);
  call.job.invert = call.range("invert", invert);
  if (!call.job.update.empty()) check_unit_interval("beta", beta);
  if (!call.job.invert.empty()) call.set_damping(damping, relative, debias);
  call.job.beta = beta;
  call.set_targets(target_norms, directions, norms, refresh_targets, momentum_correction);
  call.set_controls(controls);
  call.check_memory();
  Backend::run(call, stats);
}

}  // namespace mbf
