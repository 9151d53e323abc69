// The kernels of one kind of team, MBF_TEAM_KIND. One translation unit per kind: they compile in
// parallel.
#include "kernels.h"
#include "team_dense.cuh"

namespace mbf::cuda {

template <>
const void* team_kernel<MBF_TEAM_KIND>(Kernel kernel) {
  switch (kernel) {
    case Kernel::Refresh: return reinterpret_cast<const void*>(&refresh_team_blocks<MBF_TEAM_KIND>);
    case Kernel::Dense: return reinterpret_cast<const void*>(&invert_team_matrices<MBF_TEAM_KIND>);
    default: return nullptr;
  }
}

}  // namespace mbf::cuda
