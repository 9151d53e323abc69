// The kernels for blocks that rows share, of all widths.
#include "kernels.h"
#include "shared_step.cuh"
#include "shared_update.cuh"

namespace mbf::cuda {

const void* shared_kernel(Kernel kernel) {
  switch (kernel) {
    case Kernel::SharedStep: return reinterpret_cast<const void*>(&step_shared_rows<false>);
    case Kernel::SharedFirst: return reinterpret_cast<const void*>(&step_shared_rows<true>);
    case Kernel::SharedScale: return reinterpret_cast<const void*>(&scale_shared_layers);
    case Kernel::SharedApply: return reinterpret_cast<const void*>(&apply_shared_directions);
    case Kernel::SharedUpdate: return reinterpret_cast<const void*>(&update_shared_rows);
    case Kernel::SharedAverage: return reinterpret_cast<const void*>(&average_shared_blocks);
    default: return nullptr;
  }
}

}  // namespace mbf::cuda
