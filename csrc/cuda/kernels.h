// Pointers to the kernels for launch.cu, from the translation units that compile them.
#pragma once

#include "plan.h"

namespace mbf::cuda {

// One block per thread: thread_instance.cu, compiled once for every size. Step, Run or Dense.
template <int BlockSize>
const void* thread_kernel(Kernel kernel);

// Two lanes per block: pair_instance.cu, compiled once for every kind. Step or Run.
template <int Kind>
const void* pair_kernel(Kernel kernel);

// A team of lanes per block: team_instance.cu, compiled once for every kind. Refresh or Dense.
template <int Kind>
const void* team_kernel(Kernel kernel);

// Damping or Apply, for all sizes: tensor_kernels.cu.
const void* tensor_kernel(Kernel kernel);

// SharedStep and those after it: shared_kernels.cu.
const void* shared_kernel(Kernel kernel);

}  // namespace mbf::cuda
