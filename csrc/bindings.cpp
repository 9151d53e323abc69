// The operators: schemas, and the hand-over to the CPU kernels.
//
// torch's stable ABI throughout, so that one binary serves every torch from 2.10 on. Schemas say
// what is written: (a!) marks it.
#include <functional>
#include <tuple>

#include "cpu/driver.h"
#include "huge_pages.h"
#include "operators.h"

namespace mbf {
namespace {

void torch_parallel_for(int64_t begin, int64_t end, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(begin, end, grain, body);
}

struct Cpu {
  static Place place(const Tensor&) { return {}; }
  static void run(const Call& call, const Tensor&) {
    mbf::run(call.job, call.float64, torch_parallel_for);
  }
};

std::tuple<Tensor, Tensor> spd_inverse(Tensor matrices, double damping) {
  const int64_t d = matrix_size(matrices, Place{});
  check_damping(damping);
  const ScalarType type = stats_dtype("matrices", matrices, Place{});
  const Tensor input = torch::stable::contiguous(matrices);
  Tensor inverse = torch::stable::new_empty(input, input.sizes());
  // Above a few megabytes the result is fresh memory, and its page faults outweigh the arithmetic.
  constexpr size_t kFreshBytes = size_t{4} << 20;
  const size_t bytes = inverse.numel() * inverse.element_size();
  if (bytes >= kFreshBytes) {
    advise_huge_pages(reinterpret_cast<uintptr_t>(inverse.data_ptr()), bytes);
  }
  const auto sizes = matrices.sizes();
  const std::vector<int64_t> batch(sizes.begin(), sizes.end() - 2);
  Tensor info = torch::stable::new_empty(input, batch, ScalarType::Int);
  DenseJob job{static_cast<int>(d),
               input.numel() / (d * d),
               input.data_ptr(),
               inverse.data_ptr(),
               static_cast<int32_t*>(info.data_ptr()),
               damping};
  run(job, type == ScalarType::Double, torch_parallel_for);
  return {inverse, info};
}

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY(mbf_kernels, m) {
  m.def("spd_inverse(Tensor matrices, float damping) -> (Tensor, Tensor)");
  m.def(
      "update_(Tensor(a!) stats, Tensor(b!) tallies, Tensor[] grads, int[] blocks, int[] tiles, "
      "int block_size, float beta) -> ()");
  m.def(
      "invert_(Tensor stats, Tensor tallies, Tensor(a!) inverse, Tensor(b!) info, int[] blocks, "
      "int[] tiles, Tensor damping, int block_size, bool relative, bool debias) -> ()");
  m.def(
      "step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor inverse, "
      "Tensor? target_norms, Tensor(c!)? directions, Tensor(d!)? norms, int block_size, "
      "float lr, float momentum, float weight_decay, Tensor? controls=None) -> ()");
  m.def(
      "fused_step_(Tensor(a!)[] params, Tensor[] grads, Tensor(b!)[] momenta, Tensor(c!) stats, "
      "Tensor(d!) tallies, Tensor(e!) inverse, Tensor(f!) info, Tensor damping, "
      "Tensor(g!)? target_norms, Tensor(h!)? directions, Tensor(i!)? norms, int[] update, "
      "int[] invert, int block_size, float lr, float momentum, float weight_decay, float beta, "
      "bool relative, bool debias, bool refresh_targets, float momentum_correction, "
      "Tensor? controls=None) -> ()");
}

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CPU, m) {
  m.impl("spd_inverse", TORCH_BOX(&mbf::spd_inverse));
  m.impl("update_", TORCH_BOX(&mbf::update_<mbf::Cpu>));
  m.impl("invert_", TORCH_BOX(&mbf::invert_<mbf::Cpu>));
  m.impl("step_", TORCH_BOX(&mbf::step_<mbf::Cpu>));
  m.impl("fused_step_", TORCH_BOX(&mbf::fused_step_<mbf::Cpu>));
}
