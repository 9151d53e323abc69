// Inverses of blocks too large for the registers of one thread: a thread block has one tile, and
// each of its 16 blocks has a team of lanes. If G is updated before, that is done on the way.
#pragma once

#include "team_inverse.cuh"
#include "tile_update.cuh"

namespace mbf::cuda {

// The elements of rows 4 band .. 4 band + 3 in the packed triangle: index of the first, and count.
struct Band {
  int first, count;
  __device__ __forceinline__ Band(int band, int d)
      : first(triangle_size(band * kPatch)),
        count(triangle_size(min(d, (band + 1) * kPatch)) - first) {}
};

// Whether element n of rows 4 band .. 4 band + 3, counted from the first of them, is on the
// diagonal.
__device__ __forceinline__ bool on_diagonal(int n, int band) {
  const int top = band * kPatch;
  bool found = false;
  MBF_UNROLL
  for (int r = 0; r < kPatch; ++r) found |= n == r * top + triangle_index(r, r) + top;
  return found;
}

// Computes P and info of a tile from its G. `rows` and `columns` are shared memory.
template <class T>
__device__ __forceinline__ void invert_tile(const RunHeader& job, const TilePlace& at, float scale,
                                            float damping, float* rows, float* columns) {
  __shared__ int failed[kTileBlocks];
  __shared__ float raises[kTileBlocks];  // of the diagonals, if P is stored in bfloat16
  const int64_t start = at.tile * triangle_size(at.d) * kTileBlocks;
  T team(at.d, columns);
  for (int i = 0; i < team.bands(); ++i) {
    const Band band(i, at.d);
    const float* stats = job.stats + start + band.first * kTileBlocks;
    __syncthreads();
    for (int n = threadIdx.x; n < band.count * kTileBlocks; n += blockDim.x) {
      rows[n / kTileBlocks * kRowStride + n % kTileBlocks] = stats[n];
    }
    __syncthreads();
    team.take(i, rows, scale, damping);
  }
  const int pivot = team.invert(inverse_limit(job.short_inverse));
  if (team.leads()) failed[team.block()] = pivot;
  if (job.short_inverse) {
    const float raise = team.raise();
    if (team.leads()) raises[team.block()] = raise;
  }
  for (int i = 0; i < team.bands(); ++i) {
    const Band band(i, at.d);
    __syncthreads();
    team.give(i, rows);
    __syncthreads();
    // A block that failed keeps its last inverse, a padding block its zeros.
    const int block = threadIdx.x % kTileBlocks;
    if (block >= at.count || failed[block] != 0) continue;
    for (int n = threadIdx.x / kTileBlocks; n < band.count; n += blockDim.x / kTileBlocks) {
      const float x = rows[n * kRowStride + block];
      const int64_t to = start + (band.first + n) * kTileBlocks + block;
      if (job.short_inverse) {
        const float rounded = on_diagonal(n, i) ? raised(x, raises[block]) : nearest_bfloat16(x);
        static_cast<__nv_bfloat16*>(job.inverse)[to] = narrow<__nv_bfloat16>(rounded);
      } else {
        static_cast<float*>(job.inverse)[to] = x;
      }
    }
  }
  if (threadIdx.x < at.count) job.info[at.tile * kTileBlocks + threadIdx.x] = failed[threadIdx.x];
}

// Updates the tiles of one thread block each and inverts them, as far as the job asks for it.
template <int Kind>
__global__ void __launch_bounds__(kTeams[Kind].lanes* kTileBlocks)
    refresh_team_blocks(const __grid_constant__ RunParameters p) {
  using T = Team<kTeams[Kind].lanes, kTeams[Kind].patches>;
  extern __shared__ float4 aligned_memory[];
  __shared__ double shared_weight;
  const RunHeader& job = p.job;
  const Segment& segment = entries(p)[own_segment(p)];
  const TilePlace at = tile_place(job, segment, blockIdx.x - segment.first_unit);
  const TeamMemory sizes(at.d);
  float* columns = reinterpret_cast<float*>(aligned_memory);
  float* rows = columns + 2 * sizes.columns;

  const TileThreads threads{static_cast<int>(threadIdx.x), static_cast<int>(blockDim.x)};
  const LiveStep live = live_step(job);
  const bool update = live.update && job.update.contains(at.tile);
  const bool invert = live.invert && job.invert.contains(at.tile);
  if (update) {
    load_grads(p, segment, at, threads, rows);
    __syncthreads();
    update_tile(job, at, threads, rows);
    __syncthreads();
  }
  if ((update || (invert && job.debias)) && threadIdx.x < 32) {
    const double weight = weigh_tile(job, at, threadIdx.x, update);
    if (threadIdx.x == 0) shared_weight = weight;
  }
  if (!invert) return;
  __syncthreads();
  invert_tile<T>(job, at, job.debias ? without_bias(shared_weight) : 1.0f, damping_of(job, segment),
                 rows, columns);
}

}  // namespace mbf::cuda
