// The operators on CUDA tensors.
#include <optional>

#include "../cuda/launch.h"
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

  static void run(const TileJob& job, const Place& place, const Tensor& state) {
    // Room for absolute damping, only for inversions with relative damping. It is from torch's own
    // pool, whose memory a captured graph keeps.
    std::optional<Tensor> room;
    const int64_t doubles = cuda::damping_room(job);
    if (doubles > 0) room = torch::stable::new_empty(state, {doubles}, ScalarType::Double);
    double* absolute_damping = room ? static_cast<double*>(room->data_ptr()) : nullptr;
    cuda::launch(cuda::plan(job, absolute_damping), place.index, current_stream(place));
  }

  static void run(const DenseJob& job, const Place& place, const Tensor&) {
    cuda::launch(cuda::plan(job), place.index, current_stream(place));
  }

  static void prepare(const Tensor&) {}
};

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CUDA, m) { mbf::implement_operators<mbf::Cuda>(m); }
