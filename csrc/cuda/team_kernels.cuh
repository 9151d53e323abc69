// Inverses of blocks too large for the registers of one thread: a thread block has one tile, and
// each of its 16 blocks has a team of lanes. If G is updated before, that is done on the way.
#pragma once

#include "team_inverse.cuh"
#include "tile_update.cuh"

namespace mbf::cuda {

// Copies every Step-th of `count` elements, which are so far apart in memory.
template <int Step, class From, class To>
__device__ __forceinline__ void copy_own(int count, const From* from, int from_stride, To* to,
                                         int to_stride) {
#pragma unroll 8
  for (; count > 0; count -= Step, from += Step * from_stride, to += Step * to_stride) {
    *to = narrow<To>(*from);
  }
}

// Computes P and info of a tile from its G. `memory` is shared.
template <int Kind>
__device__ __forceinline__ void invert_tile(const RunHeader& job, const TilePlace& at, float scale,
                                            float damping, float* memory) {
  constexpr TeamShape kShape = kTeams[Kind];
  constexpr int kStep = kShape.lanes;  // half warps
  __shared__ int failed[kTileBlocks];
  const int chunk = chunk_elements(kShape, at.d);
  const int64_t start = at.tile * triangle_size(at.d) * kTileBlocks;
  const int block = threadIdx.x % kTileBlocks;
  const int first = threadIdx.x / kTileBlocks;
  float* own = memory + block;
  Team<kShape.lanes, kShape.patches> team(at.d, memory);
  for_chunks(at.d, chunk, [&](int top, int end) {
    const int elements = triangle_size(min(at.d, end)) - triangle_size(top);
    const float* stats = job.stats + start + triangle_size(top) * kTileBlocks + block;
    __syncthreads();
    copy_own<kStep>(elements - first, stats + first * kTileBlocks, kTileBlocks,
                    own + first * kRowStride, kRowStride);
    __syncthreads();
    team.take(top, end, memory, scale, damping);
  });
  __syncthreads();
  const int pivot = team.invert(inverse_limit(job.short_inverse));
  if (team.leads()) failed[team.block()] = pivot;
  const float raise = job.short_inverse ? team.raise() : 0.0f;
  for_chunks(at.d, chunk, [&](int top, int end) {
    const int elements = triangle_size(min(at.d, end)) - triangle_size(top);
    __syncthreads();
    if (job.short_inverse) {
      team.give(top, end, memory, [&](float x, bool diagonal) {
        return diagonal ? raised(x, raise) : nearest_bfloat16(x);
      });
    } else {
      team.give(top, end, memory, [](float x, bool) { return x; });
    }
    __syncthreads();
    // A block that failed keeps its last inverse, a padding block its zeros.
    if (block >= at.count || failed[block] != 0) return;
    const int64_t to = start + (triangle_size(top) + first) * kTileBlocks + block;
    if (job.short_inverse) {
      copy_own<kStep>(elements - first, own + first * kRowStride, kRowStride,
                      static_cast<__nv_bfloat16*>(job.inverse) + to, kTileBlocks);
    } else {
      copy_own<kStep>(elements - first, own + first * kRowStride, kRowStride,
                      static_cast<float*>(job.inverse) + to, kTileBlocks);
    }
  });
  if (threadIdx.x < at.count) job.info[at.tile * kTileBlocks + threadIdx.x] = failed[threadIdx.x];
}

// Updates the tiles of one thread block each and inverts them, as far as the job asks for it.
template <int Kind>
__global__ void __launch_bounds__(kTeams[Kind].lanes* kTileBlocks)
    refresh_team_blocks(const __grid_constant__ RunParameters p) {
  extern __shared__ float4 aligned_memory[];
  __shared__ double shared_weight;
  const RunHeader& job = p.job;
  const Segment& segment = entries(p)[own_segment(p)];
  const TilePlace at = tile_place(job, segment, blockIdx.x - segment.first_unit);
  float* memory = reinterpret_cast<float*>(aligned_memory);

  const TileThreads threads{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const LiveStep live = live_step(job);
  const bool update = live.update && job.update.contains(at.tile);
  const bool invert = live.invert && job.invert.contains(at.tile);
  if (update) {
    load_grads(p, segment, at, threads, memory);
    __syncthreads();
    update_tile(job, at, threads, memory);
    __syncthreads();
  }
  if ((update || (invert && job.debias)) && threadIdx.x < 32) {
    const double weight = weigh_tile(job, at, threadIdx.x, update);
    if (threadIdx.x == 0) shared_weight = weight;
  }
  if (!invert) return;
  __syncthreads();
  const float scale = job.debias ? without_bias(shared_weight) : 1.0f;
  invert_tile<Kind>(job, at, scale, damping_of(job, segment), memory);
}

}  // namespace mbf::cuda
