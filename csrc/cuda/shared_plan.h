// From a job on blocks that rows share to kernel launches. Plain C++ without CUDA, as plan.h.
#pragma once

#include "plan.h"
#include "shared_parameters.h"

namespace mbf::cuda {

// Device memory that the launches of a job use among themselves, in doubles.
int64_t scratch_room(const SharedStep& job);
int64_t scratch_room(const SharedUpdate& job);

// The launches in the order they must run; `scratch` has scratch_room(job) doubles.
std::vector<Launch> plan(const SharedStep& job, double* scratch);
std::vector<Launch> plan(const SharedUpdate& job, double* scratch);

}  // namespace mbf::cuda
