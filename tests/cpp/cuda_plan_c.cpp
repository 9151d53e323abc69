// A C interface to plan.cpp, for tests that run its launches elsewhere.
#include <cstddef>

#include "../../csrc/cuda/shared_plan.h"

using mbf::BlockView;
using mbf::DenseJob;
using mbf::PerTensor;
using mbf::RowTensor;
using mbf::RowView;
using mbf::SharedLayer;
using mbf::SharedStep;
using mbf::SharedUpdate;
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
    MEMBER(RowView, data),
    MEMBER(RowView, format),
    MEMBER(RowView, columns),
    MEMBER(RowView, group_stride),
    MEMBER(RowView, row_inner),
    MEMBER(RowView, row_outer_stride),
    MEMBER(RowView, row_stride),
    MEMBER(RowView, inner),
    MEMBER(RowView, outer_stride),
    MEMBER(RowView, inner_stride),
    MEMBER(RowTensor, weight),
    MEMBER(RowTensor, bias),
    MEMBER(SharedLayer, groups),
    MEMBER(SharedLayer, rows),
    MEMBER(SharedLayer, columns),
    MEMBER(SharedLayer, width),
    MEMBER(SharedLayer, pieces),
    MEMBER(SharedLayer, bias),
    MEMBER(SharedLayer, first_block),
    MEMBER(SharedLayer, offset),
    MEMBER(SharedUpdate, float64),
    MEMBER(SharedUpdate, layers),
    MEMBER(SharedUpdate, layer),
    MEMBER(SharedUpdate, first),
    MEMBER(SharedUpdate, last),
    MEMBER(SharedUpdate, grads),
    MEMBER(SharedUpdate, squares),
    MEMBER(SharedUpdate, stats),
    MEMBER(SharedUpdate, weights),
    MEMBER(SharedUpdate, left_out),
    MEMBER(SharedUpdate, beta),
    MEMBER(SharedStep, float64),
    MEMBER(SharedStep, layers),
    MEMBER(SharedStep, layer),
    MEMBER(SharedStep, params),
    MEMBER(SharedStep, grads),
    MEMBER(SharedStep, momenta),
    MEMBER(SharedStep, inverse),
    MEMBER(SharedStep, scalars),
    MEMBER(SharedStep, target_norms),
    MEMBER(SharedStep, directions),
    MEMBER(SharedStep, direction_room),
    MEMBER(SharedStep, refresh_targets),
    MEMBER(SharedStep, squares),
    MEMBER(SharedStep, weights),
    MEMBER(SharedStep, controls),
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
std::vector<Launch>* plan_shared_step(const SharedStep* job, double* scratch) {
  return new std::vector<Launch>(mbf::cuda::plan(*job, scratch));
}
std::vector<Launch>* plan_shared_update(const SharedUpdate* job, double* scratch) {
  return new std::vector<Launch>(mbf::cuda::plan(*job, scratch));
}
int64_t shared_step_room(const SharedStep* job) { return mbf::cuda::scratch_room(*job); }
int64_t shared_update_room(const SharedUpdate* job) { return mbf::cuda::scratch_room(*job); }
// The kinds of pair and team that serve blocks of this size; -1 where one thread does.
int32_t pair_kind(int32_t block_size) {
  return block_size <= mbf::cuda::kMaxThreadBlock ? -1 : mbf::cuda::pair_kind(block_size);
}
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
