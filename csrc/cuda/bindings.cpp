// The operators on CUDA tensors: the same schemas and checks, another hand-over.
#include <tuple>

#include "../operators.h"
#include "launch.h"

namespace mbf {
namespace {

void* current_stream(const Place& place) {
  void* stream = nullptr;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(place.index, &stream));
  return stream;
}

struct Cuda {
  static Place place(const Tensor& state) {
    if (!state.is_cuda()) fail("expected all tensors on one CUDA device");
    return {true, state.get_device_index()};
  }

  static void run(const Call& call, const Tensor& state) {
    cuda::DeviceJob device_job{call.job,
                               call.device_damping,
                               call.damping_per_tensor,
                               call.target_per_tensor,
                               call.controls,
                               nullptr};
    // From torch's own pool, which a captured graph keeps: only where damping is relative, and only
    // on steps that invert.
    std::optional<Tensor> room;
    const int64_t doubles = cuda::damping_room(call.job);
    if (doubles > 0) {
      room = torch::stable::new_empty(state, {doubles}, ScalarType::Double);
      device_job.absolute_damping = static_cast<double*>(room->data_ptr());
    }
    cuda::launch(cuda::plan(device_job), call.place().index, current_stream(call.place()));
  }
};

std::tuple<Tensor, Tensor> spd_inverse_cuda(Tensor matrices, double damping) {
  const Place place = Cuda::place(matrices);
  const int64_t d = matrix_size(matrices, place);
  check_damping(damping);
  stats_dtype("matrices", matrices, place);
  const Tensor input = torch::stable::contiguous(matrices);
  Tensor inverse = torch::stable::new_empty(input, input.sizes());
  const auto sizes = matrices.sizes();
  const std::vector<int64_t> batch(sizes.begin(), sizes.end() - 2);
  Tensor info = torch::stable::new_empty(input, batch, ScalarType::Int);
  const DenseJob job{static_cast<int>(d),
                     input.numel() / (d * d),
                     input.data_ptr(),
                     inverse.data_ptr(),
                     static_cast<int32_t*>(info.data_ptr()),
                     damping};
  cuda::launch(cuda::plan(job), place.index, current_stream(place));
  return {inverse, info};
}

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CUDA, m) {
  m.impl("spd_inverse", TORCH_BOX(&mbf::spd_inverse_cuda));
  m.impl("update_", TORCH_BOX(&mbf::update_<mbf::Cuda>));
  m.impl("invert_", TORCH_BOX(&mbf::invert_<mbf::Cuda>));
  m.impl("step_", TORCH_BOX(&mbf::step_<mbf::Cuda>));
  m.impl("fused_step_", TORCH_BOX(&mbf::fused_step_<mbf::Cuda>));
}
