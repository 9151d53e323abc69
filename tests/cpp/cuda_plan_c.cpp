// plan.cpp with a C interface, for tests that run the launches it makes somewhere else.
#include "../../csrc/cuda/plan.h"

using mbf::cuda::Launch;

extern "C" {

struct LaunchView {
  int32_t kernel, block_size;
  uint32_t grid, threads, shared_bytes;
  uint64_t parameter_bytes;
  const unsigned char* parameters;
};

uint64_t device_job_bytes() { return sizeof(mbf::cuda::DeviceJob); }
uint64_t dense_job_bytes() { return sizeof(mbf::DenseJob); }

std::vector<Launch>* plan_tiles(const mbf::cuda::DeviceJob* job) {
  return new std::vector<Launch>(mbf::cuda::plan(*job));
}
std::vector<Launch>* plan_dense(const mbf::DenseJob* job) {
  return new std::vector<Launch>(mbf::cuda::plan(*job));
}
// The kind of team that serves blocks of this size; -1 where one thread does.
int32_t team_kind(int32_t block_size) {
  return block_size <= mbf::cuda::kMaxThreadBlock ? -1 : mbf::cuda::team_kind(block_size);
}
int64_t damping_room(const mbf::TileJob* job) { return mbf::cuda::damping_room(*job); }

uint64_t launch_count(const std::vector<Launch>* launches) { return launches->size(); }
LaunchView launch_view(const std::vector<Launch>* launches, uint64_t index) {
  const Launch& launch = (*launches)[index];
  return {static_cast<int32_t>(launch.kernel),
          launch.block_size,
          launch.grid,
          launch.threads,
          launch.shared_bytes,
          launch.parameters.size(),
          launch.parameters.data()};
}
void free_launches(std::vector<Launch>* launches) { delete launches; }
}
