// A C interface to plan.cpp, for tests that run its launches elsewhere.
#include <cstddef>

#include "../../csrc/cuda/plan.h"

using mbf::BlockView;
using mbf::DenseJob;
using mbf::PerTensor;
using mbf::TileJob;
using mbf::TileRange;
using mbf::cuda::Launch;

extern "C" {

struct LaunchView {
  int32_t kernel, block_size;
  uint32_t grid, threads, shared_bytes;
  uint64_t parameter_bytes;
  const unsigned char* parameters;
};

// A member of a struct, for a caller in another language that declares the same struct.
struct Member {
  const char* of;
  const char* name;
  uint64_t offset, bytes;
};

#define MEMBER(type, name) {#type, #name, offsetof(type, name), sizeof(type::name)}
constexpr Member kMembers[] = {
    MEMBER(TileRange, first),
    MEMBER(TileRange, last),
    MEMBER(BlockView, data),
    MEMBER(BlockView, format),
    MEMBER(BlockView, contiguous),
    MEMBER(BlockView, inner),
    MEMBER(BlockView, outer_stride),
    MEMBER(BlockView, inner_stride),
    MEMBER(BlockView, element_stride),
    MEMBER(PerTensor, values),
    MEMBER(PerTensor, one_for_all),
    MEMBER(PerTensor, on_device),
    MEMBER(TileJob, block_size),
    MEMBER(TileJob, float64),
    MEMBER(TileJob, tensors),
    MEMBER(TileJob, tile_start),
    MEMBER(TileJob, blocks),
    MEMBER(TileJob, update),
    MEMBER(TileJob, invert),
    MEMBER(TileJob, step),
    MEMBER(TileJob, params),
    MEMBER(TileJob, grads),
    MEMBER(TileJob, momenta),
    MEMBER(TileJob, stats),
    MEMBER(TileJob, inverse),
    MEMBER(TileJob, inverse_format),
    MEMBER(TileJob, tallies),
    MEMBER(TileJob, info),
    MEMBER(TileJob, beta),
    MEMBER(TileJob, damping),
    MEMBER(TileJob, relative_damping),
    MEMBER(TileJob, debias),
    MEMBER(TileJob, scalars),
    MEMBER(TileJob, target_norms),
    MEMBER(TileJob, directions),
    MEMBER(TileJob, direction_tiles),
    MEMBER(TileJob, norms),
    MEMBER(TileJob, refresh_targets),
    MEMBER(TileJob, controls),
    MEMBER(DenseJob, block_size),
    MEMBER(DenseJob, float64),
    MEMBER(DenseJob, count),
    MEMBER(DenseJob, matrices),
    MEMBER(DenseJob, inverses),
    MEMBER(DenseJob, info),
    MEMBER(DenseJob, damping),
    MEMBER(LaunchView, kernel),
    MEMBER(LaunchView, block_size),
    MEMBER(LaunchView, grid),
    MEMBER(LaunchView, threads),
    MEMBER(LaunchView, shared_bytes),
    MEMBER(LaunchView, parameter_bytes),
    MEMBER(LaunchView, parameters),
};
#undef MEMBER

// The member at an index; past the last one, a member without a name.
Member member(uint64_t index) {
  return index < std::size(kMembers) ? kMembers[index] : Member{nullptr, nullptr, 0, 0};
}
uint64_t tile_job_bytes() { return sizeof(TileJob); }
uint64_t dense_job_bytes() { return sizeof(DenseJob); }
const char* step_scalar(uint64_t index) {
  return index < std::size(mbf::kStepScalarNames) ? mbf::kStepScalarNames[index] : nullptr;
}

std::vector<Launch>* plan_tiles(const TileJob* job, double* absolute_damping) {
  return new std::vector<Launch>(mbf::cuda::plan(*job, absolute_damping));
}
std::vector<Launch>* plan_dense(const DenseJob* job) {
  return new std::vector<Launch>(mbf::cuda::plan(*job));
}
// The kind of team that serves blocks of this size; -1 where one thread does.
int32_t team_kind(int32_t block_size) {
  return block_size <= mbf::cuda::kMaxThreadBlock ? -1 : mbf::cuda::team_kind(block_size);
}
int64_t damping_room(const TileJob* job) { return mbf::cuda::damping_room(*job); }

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
