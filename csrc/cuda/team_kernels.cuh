// Blocks too large for the registers of one thread: a thread block has one tile, and each of its 16
// blocks has a team of lanes.
//
// Only the inverse uses teams. The update and the step are bound by memory: there half a warp
// accesses the same element of all 16 blocks, which is 64 contiguous bytes.
#pragma once

#include "../core/adam_step.h"
#include "live_step.cuh"
#include "natural.cuh"
#include "team_inverse.cuh"

namespace mbf::cuda {

// The tile of a thread block.
struct TilePlace {
  int d;
  int64_t tile;
  int64_t block;  // in the tensor
  int count;      // blocks, not counting padding
};

__device__ __forceinline__ TilePlace tile_place(const RunHeader& job, const Segment& segment) {
  const uint32_t tile = blockIdx.x - segment.first_unit;
  const uint32_t left = segment.blocks - tile * kTileBlocks;
  return {job.block_size, segment.tile + tile, segment.block + int64_t{tile} * kTileBlocks,
          static_cast<int>(left < kTileBlocks ? left : kTileBlocks)};
}

// Calls f(element in memory, block, index in the block) for all elements of a tile of a natural
// tensor. Neighbouring threads access neighbouring memory.
template <class F>
__device__ __forceinline__ void for_natural(const NaturalView& view, int d, F f) {
  with_format(view.format, [&](auto* type) {
    using Stored = std::remove_pointer_t<decltype(type)>;
    if (view.strides == nullptr) {
      Stored* run = static_cast<Stored*>(view.data) + view.block * d;
      for (int i = threadIdx.x; i < view.count * d; i += blockDim.x) {
        const int block = i / d;
        f(run[i], block, i - block * d);
      }
    } else {
      const int block = threadIdx.x % kTileBlocks;
      if (block >= view.count) return;
      Stored* own = static_cast<Stored*>(view.data) + strided_block(view, block);
      for (int e = threadIdx.x / kTileBlocks; e < d; e += blockDim.x / kTileBlocks) {
        f(own[e * view.strides->element_stride], block, e);
      }
    }
  });
}

// Half a warp per row of the 16 triangles; its thread `lane` has block `lane`.
struct RowLanes {
  int lane = threadIdx.x % kTileBlocks;
  int first = threadIdx.x / kTileBlocks;
  int step = blockDim.x / kTileBlocks;
};

__device__ __forceinline__ void update_rows(const RunHeader& job, float* stats, const float* v,
                                            int d) {
  const RowLanes rows;
  const float* own = v + rows.lane * stage_stride(d);
  for (int row = rows.first; row < d; row += rows.step) {
    const float scaled = job.short_rest * own[row];
    float* g = stats + triangle_index(row, 0) * kTileBlocks + rows.lane;
#pragma unroll 8
    for (int col = 0; col <= row; ++col) {
      g[col * kTileBlocks] = job.short_beta * g[col * kTileBlocks] + scaled * own[col];
    }
  }
}

// u = P m. One thread sums a whole row: up to the diagonal along the stored row, beyond it down the
// column, which the rows below have brought into the cache.
template <class Stored>
__device__ __forceinline__ void multiply_rows(const Stored* inverse, const float* m, float* u,
                                              int d) {
  const RowLanes rows;
  const Stored* p = inverse + rows.lane;
  const float* own = m + rows.lane * stage_stride(d);
  for (int row = rows.first; row < d; row += rows.step) {
    float sum = 0;
    const Stored* along = p + triangle_index(row, 0) * kTileBlocks;
#pragma unroll 8
    for (int col = 0; col <= row; ++col) sum += widen(along[col * kTileBlocks]) * own[col];
#pragma unroll 8
    for (int col = row + 1; col < d; ++col) {
      sum += widen(p[triangle_index(col, row) * kTileBlocks]) * own[col];
    }
    u[rows.lane * stage_stride(d) + row] = sum;
  }
}

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

// Returns the tile's weight and, if G was updated, stores its tally. All threads call it, after the
// update.
__device__ __forceinline__ double tile_weight(const RunHeader& job, const TilePlace& at,
                                              bool updated) {
  __shared__ double shared_weight;
  if (threadIdx.x < 32) {
    float trace = 0;
    if (updated && threadIdx.x < kTileBlocks) {
      const float* stats = job.stats + at.tile * triangle_size(at.d) * kTileBlocks + threadIdx.x;
      for (int e = 0; e < at.d; ++e) trace += stats[triangle_index(e, e) * kTileBlocks];
    }
    const double sum = sum_over_lanes<kTileBlocks>(finite_or_zero(trace));
    if (threadIdx.x == 0) {
      double weight = job.tallies[at.tile].weight;
      if (updated) {
        weight = updated_weight(job, weight);
        job.tallies[at.tile] = {weight, weight > 0 ? sum / weight : 0.0};
      }
      shared_weight = weight;
    }
  }
  __syncthreads();
  return shared_weight;
}

// Stores the squared norms over the blocks of the tile; the first warp does it.
__device__ __forceinline__ void store_tile_norms(const RunHeader& job, const TilePlace& at,
                                                 const float* u, const float* m, float correction) {
  if (threadIdx.x >= 32) return;
  double direction = 0;
  float adam = 0;
  if (threadIdx.x < at.count) {
    const float* own_u = u + threadIdx.x * stage_stride(at.d);
    float square = 0;
    for (int e = 0; e < at.d; ++e) square += own_u[e] * own_u[e];
    direction = square;
    if (!(square > 1e-30f && square < 1e30f)) {  // may not fit float32
      direction = 0;
      for (int e = 0; e < at.d; ++e) direction += static_cast<double>(own_u[e]) * own_u[e];
      if (!isfinite(direction)) direction = 0;
    }
    if (job.refresh_targets) {
      const float* stats = job.stats + at.tile * triangle_size(at.d) * kTileBlocks + threadIdx.x;
      adam = clipped_adam_square([&](int e) { return stats[triangle_index(e, e) * kTileBlocks]; },
                                 m + threadIdx.x * stage_stride(at.d), correction,
                                 without_bias(job.tallies[at.tile].weight), at.d);
    }
  }
  const TileNorms sums{sum_over_lanes<kTileBlocks>(direction),
                       sum_over_lanes<kTileBlocks>(finite_or_zero(adam))};
  if (threadIdx.x == 0) job.norms[at.tile] = sums;
}

// Updates M and W of a tile or, with target norms, M and P M. All threads see D in `grads`.
__device__ __forceinline__ void step_tile(const RunParameters& p, const Segment& segment,
                                          const TilePlace& at, const float* grads, float* momenta,
                                          float* directions) {
  const RunHeader& job = p.job;
  const int stride = stage_stride(at.d);
  const auto view = [&](const void* data, Natural natural) {
    return natural_view(p, data, natural, at.block, at.count);
  };
  for (int i = threadIdx.x; i < kTileBlocks * stride; i += blockDim.x) {
    if (i / stride >= at.count) momenta[i] = 0;  // padding
  }
  for_natural(view(segment.momenta, segment.natural[2]), at.d, [&](auto& m, int block, int e) {
    const float gradient = grads[block * stride + e];
    const float fresh = accumulated(job.scalars, widen(m), gradient);
    momenta[block * stride + e] = looked_ahead(job.scalars, fresh, gradient);
    m = narrow<std::remove_reference_t<decltype(m)>>(fresh);
  });
  __syncthreads();
  const int64_t start = at.tile * triangle_size(at.d) * kTileBlocks;
  if (job.short_inverse) {
    multiply_rows(static_cast<const __nv_bfloat16*>(job.inverse) + start, momenta, directions,
                  at.d);
  } else {
    multiply_rows(static_cast<const float*>(job.inverse) + start, momenta, directions, at.d);
  }
  __syncthreads();
  const StepScalars<float> scalars = live_step(job).scalars;
  if (job.directions == nullptr) {
    for_natural(view(segment.params, segment.natural[0]), at.d, [&](auto& w, int block, int e) {
      const float fresh = moved(scalars, widen(w), directions[block * stride + e]);
      w = narrow<std::remove_reference_t<decltype(w)>>(fresh);
    });
    return;
  }
  const NaturalView out{job.directions, Format::Float32, nullptr, at.tile * kTileBlocks,
                        kTileBlocks};
  for_natural(out, at.d, [&](auto& u, int block, int e) {
    u = narrow<std::remove_reference_t<decltype(u)>>(directions[block * stride + e]);
  });
  store_tile_norms(job, at, directions, momenta, scalars.momentum_correction);
}

// Everything the job asks of one tile. `StepOnly`: the job has no update and no inversion.
template <int Kind, bool StepOnly>
__global__ void __launch_bounds__(kTeams[Kind].lanes* kTileBlocks)
    run_team_blocks(const __grid_constant__ RunParameters p) {
  using T = Team<kTeams[Kind].lanes, kTeams[Kind].patches>;
  extern __shared__ float4 aligned_memory[];
  const RunHeader& job = p.job;
  const Segment& segment = entries(p)[own_segment(p)];
  const TilePlace at = tile_place(job, segment);
  const TeamMemory sizes(at.d);
  float* columns = reinterpret_cast<float*>(aligned_memory);
  float* rows = columns + 2 * sizes.columns;
  float* grads = rows + sizes.rows;
  float* momenta = grads + sizes.stage;
  float* directions = momenta + sizes.stage;

  if (job.step || !job.update.empty()) {
    for (int i = threadIdx.x; i < kTileBlocks * stage_stride(at.d); i += blockDim.x) {
      if (i / stage_stride(at.d) >= at.count) grads[i] = 0;  // padding
    }
    const NaturalView view = natural_view(p, segment.grads, segment.natural[1], at.block, at.count);
    for_natural(view, at.d, [&](const auto& x, int block, int e) {
      grads[block * stage_stride(at.d) + e] = widen(x);
    });
    __syncthreads();
  }
  if constexpr (!StepOnly) {
    const LiveStep live = live_step(job);
    const bool update = live.update && job.update.contains(at.tile);
    const bool invert = live.invert && job.invert.contains(at.tile);
    if (update) {
      update_rows(job, job.stats + at.tile * triangle_size(at.d) * kTileBlocks, grads, at.d);
      __syncthreads();
    }
    double weight = 1.0;
    if (update || (invert && job.debias)) weight = tile_weight(job, at, update);
    if (invert) {
      invert_tile<T>(job, at, job.debias ? without_bias(weight) : 1.0f, damping_of(job, segment),
                     rows, columns);
      __syncthreads();
    }
    if (!job.step) return;
  }
  step_tile(p, segment, at, grads, momenta, directions);
}

}  // namespace mbf::cuda
