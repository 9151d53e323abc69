#include "kernels.h"
#include "tensor_kernels.cuh"

namespace mbf::cuda {

const void* tensor_kernel(Kernel kernel) {
  switch (kernel) {
    case Kernel::Damping: return reinterpret_cast<const void*>(&damping_of_tensors);
    case Kernel::Apply: return reinterpret_cast<const void*>(&apply_directions);
    default: return nullptr;
  }
}

}  // namespace mbf::cuda
