// The kernels of one class of blocks that two lanes share, MBF_PAIR_KIND. One translation unit per
// class: they compile in parallel.
#include "kernels.h"
#include "pair_kernels.cuh"

namespace mbf::cuda {

template <>
const void* pair_kernel<MBF_PAIR_KIND>(Kernel kernel) {
  constexpr int kColumns = kPairs[MBF_PAIR_KIND].columns;
  switch (kernel) {
    case Kernel::Step: return reinterpret_cast<const void*>(&run_pair_blocks<kColumns, true>);
    case Kernel::Run: return reinterpret_cast<const void*>(&run_pair_blocks<kColumns, false>);
    default: return nullptr;
  }
}

}  // namespace mbf::cuda
