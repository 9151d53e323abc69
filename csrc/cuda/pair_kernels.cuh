// Updates and steps of blocks too large for one thread: a warp has a tile, two lanes a block.
#pragma once

#include "pair_step.cuh"
#include "tensor_norms.cuh"
#include "tile_update.cuh"

namespace mbf::cuda {

constexpr int kPairWarps = kPairTiles;

// Thread blocks that must fit on a multiprocessor: left alone, ptxas spills a few registers to fit
// one more.
constexpr int pair_residents(int columns) { return columns <= 14 ? 4 : 3; }

// Everything but inversions that the job asks of the tiles of a thread block. `StepOnly`: the job
// has no update.
template <int Columns, bool StepOnly>
__global__ void __launch_bounds__(kPairThreads, pair_residents(Columns))
    run_pair_blocks(const __grid_constant__ RunParameters p) {
  extern __shared__ float4 aligned_memory[];
  const RunHeader& job = p.job;
  const Segment& segment = entries(p)[own_segment(p)];
  const int warp = threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  const uint32_t first = (blockIdx.x - segment.first_unit) * kPairTiles;
  const TilePlace at = tile_place(job, segment, first + warp);
  float* stage = reinterpret_cast<float*>(aligned_memory) + warp * pair_stage(at.d);
  TileNorms norms{};
  if (at.count > 0) {
    load_grads(p, segment, at, {lane, 32}, stage);
    __syncwarp();
    if constexpr (!StepOnly) {
      if (live_step(job).update && job.update.contains(at.tile)) {
        update_tile(job, at, {lane, 32}, stage);
        __syncwarp();
        weigh_tile(job, at, lane, true);
        __syncwarp();
      }
    }
    if (job.step) norms = step_tile<Columns>(p, segment, at, lane, stage);
  }
  if (!job.step || job.directions == nullptr) return;
  __shared__ TileNorms sums[kPairWarps];
  if (lane == 0) sums[warp] = norms;
  __syncthreads();
  norms = sums[0];
  for (int w = 1; w < kPairWarps; ++w) {
    norms.direction += sums[w].direction;
    norms.adam += sums[w].adam;
  }
  add_up_norms<kPairThreads, kPairTiles>(job, segment, norms);
}

}  // namespace mbf::cuda
