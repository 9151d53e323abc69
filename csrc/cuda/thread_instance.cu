// The kernels of one block size, MBF_BLOCK_SIZE. One translation unit per size: they compile in
// parallel.
#include "kernels.h"
#include "thread_dense.cuh"

namespace mbf::cuda {

template <>
const void* thread_kernel<MBF_BLOCK_SIZE>(Kernel kernel) {
  switch (kernel) {
    case Kernel::Step:
      return reinterpret_cast<const void*>(&run_thread_blocks<MBF_BLOCK_SIZE, true>);
    case Kernel::Run:
      return reinterpret_cast<const void*>(&run_thread_blocks<MBF_BLOCK_SIZE, false>);
    case Kernel::Dense:
      return reinterpret_cast<const void*>(&invert_thread_matrices<MBF_BLOCK_SIZE>);
    default: return nullptr;
  }
}

}  // namespace mbf::cuda
