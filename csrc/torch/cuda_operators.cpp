// The operators on CUDA tensors.
#include <torch/csrc/stable/accelerator.h>

#include <optional>

#include "../cuda/launch.h"
#include "../cuda/shared_plan.h"
#include "operators.h"

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

  // Room for absolute damping, only for inversions with relative damping.
  static void run(const TileJob& job, const Place& place, const Tensor& state) {
    launch(job, cuda::damping_room(job), place, state);
  }

  static void run(const SharedStep& job, const Place& place, const Tensor& state) {
    launch(job, cuda::scratch_room(job), place, state);
  }

  static void run(const SharedUpdate& job, const Place& place, const Tensor& state) {
    launch(job, cuda::scratch_room(job), place, state);
  }

  static void run(const DenseJob& job, const Place& place, const Tensor&) {
    launch(cuda::plan(job), place);
  }

  static void prepare(const Tensor&) {}

 private:
  // Scratch memory is from torch's own pool, whose memory a captured graph keeps.
  template <class Job>
  static void launch(const Job& job, int64_t doubles, const Place& place, const Tensor& state) {
    std::optional<Tensor> room;
    if (doubles > 0) room = torch::stable::new_empty(state, {doubles}, ScalarType::Double);
    double* scratch = room ? static_cast<double*>(room->data_ptr()) : nullptr;
    launch(cuda::plan(job, scratch), place);
  }

  // torch's guard gives the caller's device back without creating a context there.
  static void launch(const std::vector<cuda::Launch>& launches, const Place& place) {
    const torch::stable::accelerator::DeviceGuard guard(place.index);
    cuda::launch(launches, place.index, current_stream(place));
  }
};

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CUDA, m) { mbf::implement_operators<mbf::Cuda>(m); }
