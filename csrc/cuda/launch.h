// Issues planned launches on a stream.
#pragma once

#include <vector>

#include "plan.h"

namespace mbf::cuda {

// On this device and stream (a cudaStream_t), in order. Allocates nothing and waits for nothing: a
// CUDA graph can capture it. Throws std::runtime_error if CUDA refuses a launch.
void launch(const std::vector<Launch>& launches, int device, void* stream);

}  // namespace mbf::cuda
