// The squared norms of a tensor, from those of the thread blocks that step it.
#pragma once

#include "device.cuh"

namespace mbf::cuda {

// Adds up the norms of a tensor over its thread blocks, of `UnitTiles` tiles each, and stores them
// at its first tile. Thread 0 has those of its own thread block. All threads call it.
//
// A thread block stores its sums at its first tile and counts itself as arrived. The last one of
// the tensor adds up all of them, in an order that depends only on their number. The count is kept
// where no sums are, at the tensor's second tile: it is zero before the launch, and again after it.
template <int Threads, int UnitTiles>
__device__ __forceinline__ void add_up_norms(const RunHeader& job, const Segment& segment,
                                             TileNorms own) {
  static_assert(UnitTiles > 1);
  uint32_t thread;  // read again, see warp_place
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  bool last = false;
  const int64_t unit_tile = int64_t{blockIdx.x - segment.first_unit} * UnitTiles;
  const int64_t tensor_tile = segment.tile - segment.block / kTileBlocks;
  TileNorms* sums = job.norms + tensor_tile;
  if (thread == 0) {
    job.norms[segment.tile + unit_tile] = own;
    __threadfence();
    if (segment.tensor_units > 1) {  // otherwise there may be no second tile
      const uint32_t others = segment.tensor_units - 1;
      last = atomicInc(reinterpret_cast<unsigned*>(sums + 1), others) == others;
    }
    __threadfence();
  }
  if (!__syncthreads_or(last)) return;
  TileNorms all{};
#pragma unroll 1
  for (uint32_t unit = thread; unit < segment.tensor_units; unit += Threads) {
    const TileNorms& one = sums[int64_t{unit} * UnitTiles];
    all.direction += one.direction;
    all.adam += one.adam;
  }
  all.direction = sum_over_threads<Threads>(all.direction);
  if (job.refresh_targets) all.adam = sum_over_threads<Threads>(all.adam);
  if (thread == 0) *sums = all;
}

}  // namespace mbf::cuda
