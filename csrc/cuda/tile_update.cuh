// G of a tile: its update by D, which is in shared memory, and its tally.
#pragma once

#include "../core/triangle.h"
#include "tile_stage.cuh"

namespace mbf::cuda {

// Half a warp per row of the 16 triangles, which accesses 64 contiguous bytes.
__device__ __forceinline__ void update_tile(const RunHeader& job, const TilePlace& at,
                                            TileThreads threads, const float* grads) {
  const int lane = threads.index % kTileBlocks;
  const float* own = grads + lane * tile_stride(at.d);
  float* stats = job.stats + at.tile * triangle_size(at.d) * kTileBlocks + lane;
  for (int row = threads.index / kTileBlocks; row < at.d; row += threads.count / kTileBlocks) {
    const float scaled = job.short_rest * own[row];
    float* g = stats + triangle_index(row, 0) * kTileBlocks;
#pragma unroll 8
    for (int col = 0; col <= row; ++col) {
      g[col * kTileBlocks] = job.short_beta * g[col * kTileBlocks] + scaled * own[col];
    }
  }
}

// The tile's weight, in the first half of a warp. If G was updated before, its tally is stored.
// All lanes of the warp call it.
__device__ __forceinline__ double weigh_tile(const RunHeader& job, const TilePlace& at, int lane,
                                             bool updated) {
  float trace = 0;
  if (updated && lane < kTileBlocks) {
    const float* stats = job.stats + at.tile * triangle_size(at.d) * kTileBlocks + lane;
#pragma unroll 4
    for (int e = 0; e < at.d; ++e) trace += stats[triangle_index(e, e) * kTileBlocks];
  }
  const double sum = sum_over_lanes<kTileBlocks>(finite_or_zero(trace));
  double weight = 0;
  if (lane == 0) {
    weight = job.tallies[at.tile].weight;
    if (updated) {
      weight = updated_weight(job, weight);
      job.tallies[at.tile] = {weight, weight > 0 ? sum / weight : 0.0};
    }
  }
  return __shfl_sync(kWarp, weight, 0);
}

}  // namespace mbf::cuda
