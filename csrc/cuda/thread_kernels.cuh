// One block per thread, its triangle in registers: sizes up to kMaxThreadBlock.
//
// A warp has two tiles. Loads of G and P are coalesced by the tile layout (half a warp reads one
// element of 16 blocks, 64 bytes), those of D, M and W by natural.cuh. All blocks of a thread block
// belong to one tensor, so that it can add up what they contribute to the tensor's norm.
#pragma once

#include "../core/adam_step.h"
#include "../core/rank_one_ema.h"
#include "../core/spd_sweep.h"
#include "../core/symmetric_product.h"
#include "live_step.cuh"
#include "natural.cuh"
#include "tensor_norms.cuh"

namespace mbf::cuda {

constexpr int kWarps = kThreadBlockThreads / 32;

// Thread blocks that must fit on a multiprocessor, which caps the registers of a thread: 64 up to
// 9 x 9, for an occupancy of one half on an A100; beyond that the triangle needs more. With 64 the
// kernels of 8 x 8 spill on sm_100 and sm_120.
MBF_INLINE constexpr int wanted_residents(int d) {
  return d == 8 ? 7 : d <= 9 ? 8 : d == 10 ? 6 : 4;
}

template <int D>
struct ThreadStages {
  WarpStage<D> grads, momenta, params;
  uint32_t segment;  // index in the list
};

// Offset of the triangle of this lane's block in G or P; its element i is 16 i further on.
template <int D>
__device__ __forceinline__ int64_t triangle_offset(int64_t tile, int lane) {
  return tile * (triangle_size(D) * kTileBlocks) + lane % kTileBlocks;
}

template <int D>
__device__ __forceinline__ void store_inverse(const RunHeader& job, int64_t offset,
                                              const float (&a)[triangle_size(D)]) {
  if (job.short_inverse) {
    auto* to = static_cast<__nv_bfloat16*>(job.inverse) + offset;
    // The asm makes every use compute a scale again: all of them would take D registers.
    const auto scale = [&](int row) {
      float diagonal = a[triangle_index(row, row)];
      asm volatile("" : "+f"(diagonal));
      return reciprocal_scale(diagonal);
    };
    round_inverse<float>([&](int i) { return a[i]; }, scale,
                         [&](int i, float x) { to[i * kTileBlocks] = narrow<__nv_bfloat16>(x); },
                         Const<D>{});
  } else {
    auto* to = static_cast<float*>(job.inverse) + offset;
    MBF_UNROLL
    for (int i = 0; i < triangle_size(D); ++i) to[i * kTileBlocks] = a[i];
  }
}

// An element of G, kept in a register as well as in memory.
struct StatsSlot {
  float* memory;
  float* kept;
  __device__ __forceinline__ float load() const { return *kept; }
  __device__ __forceinline__ void store(float x) const { *memory = *kept = x; }
};

// A vector that is read from shared memory at every use, to leave the registers to the triangle.
struct SharedVector {
  const volatile float* memory;
  __device__ __forceinline__ float operator[](int e) const { return memory[e]; }
};

// a <- (scale a + damping I)^-1; returns 0 or the 1-based pivot that failed. The reciprocals of
// the pivots are checked first: one bad pivot spoils the whole diagonal.
template <int D>
__device__ __forceinline__ int invert_block(float (&a)[triangle_size(D)], float scale,
                                            float damping, float limit) {
  MBF_UNROLL
  for (int row = 0; row < D; ++row) {
    MBF_UNROLL
    for (int col = 0; col <= row; ++col) a[triangle_index(row, col)] *= scale;
    a[triangle_index(row, row)] += damping;
  }
  int failed = 0;
  const auto check = [&](int k, float x) {
    if (failed == 0 && !(positive(x) && less(x, limit))) failed = k + 1;
  };
  spd_sweep(a, Const<D>{}, check);
  MBF_UNROLL
  for (int i = 0; i < triangle_size(D); ++i) a[i] = -a[i];
  MBF_UNROLL
  for (int k = 0; k < D; ++k) check(k, a[triangle_index(k, k)]);
  return failed;
}

// ||u||^2, in double where float32 would overflow or lose digits.
template <int D>
__device__ __forceinline__ double square_of_block(const float (&u)[D]) {
  float square = 0;
  MBF_UNROLL
  for (int e = 0; e < D; ++e) square += u[e] * u[e];
  if (square > 1e-30f && square < 1e30f) return square;
  double wide = 0;
  MBF_UNROLL
  for (int e = 0; e < D; ++e) wide += static_cast<double>(u[e]) * u[e];
  return isfinite(wide) ? wide : 0.0;
}

// The blocks of a warp: up to 32 of one tensor, in two tiles.
struct WarpPlace {
  int lane;
  int64_t block;     // in the tensor
  int count;         // blocks, not counting padding
  int64_t tile;      // this lane's
  bool tile_exists;  // this lane's tile belongs to the tensor; its block may be padding
  bool exists;       // this lane's block is not padding
};

// Every phase of a kernel computes its place again: a value kept from one phase to the next would
// take a register from the triangle. The asm hides from the compiler that both are the same.
__device__ __forceinline__ WarpPlace warp_place(const Segment& segment) {
  uint32_t thread;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
  WarpPlace at;
  at.lane = thread % 32;
  const uint32_t tile =
      (blockIdx.x - segment.first_unit) * kThreadTiles + thread / 32 * (32 / kTileBlocks);
  const int64_t left = static_cast<int64_t>(segment.blocks) - int64_t{tile} * kTileBlocks;
  at.block = segment.block + int64_t{tile} * kTileBlocks;
  at.count = left < 0 ? 0 : left > 32 ? 32 : static_cast<int>(left);
  at.tile = segment.tile + tile + at.lane / kTileBlocks;
  at.tile_exists = at.lane / kTileBlocks * kTileBlocks < at.count;
  at.exists = at.lane < at.count;
  return at;
}

// Loads D, M and W of the warp's blocks into shared memory, those that the job needs.
template <int D>
__device__ __forceinline__ void fetch_blocks(const RunParameters& p, const Segment& segment,
                                             ThreadStages<D>& stage) {
  const RunHeader& job = p.job;
  const WarpPlace at = warp_place(segment);
  const auto view = [&](const void* data, Natural natural) {
    return natural_view(p, data, natural, at.block, at.count);
  };
  const NaturalView grads = view(segment.grads, segment.natural[1]);
  const NaturalView momenta = view(segment.momenta, segment.natural[2]);
  const NaturalView params = view(segment.params, segment.natural[0]);
  const bool moves = job.step && job.directions == nullptr;
  const bool wants_grads = job.step || !job.update.empty();
  float d[D], m[D], w[D];
  if (wants_grads) fetch<D>(grads, at.lane, d);
  if (job.step) fetch<D>(momenta, at.lane, m);
  if (moves) fetch<D>(params, at.lane, w);
  if (wants_grads) put<D>(grads, at.lane, d, stage.grads);
  if (job.step) put<D>(momenta, at.lane, m, stage.momenta);
  if (moves) put<D>(params, at.lane, w, stage.params);
  __syncwarp();
}

// Updates G and inverts it into P, as far as the job asks for it. The trace of an updated G goes to
// `trace`, for finish_tally: its sums and divisions in double would take registers that the
// triangle needs.
template <int D, class FindSegment>
__device__ __forceinline__ void refresh_blocks(const RunHeader& job, FindSegment segment,
                                               const WarpStage<D>& grads, float& trace) {
  const LiveStep live = live_step(job);
  const WarpPlace at = warp_place(segment());
  const bool update = live.update && at.tile_exists && job.update.contains(at.tile);
  const bool invert = live.invert && at.tile_exists && job.invert.contains(at.tile);
  if (!update && !invert) return;
  float* stats = job.stats + triangle_offset<D>(at.tile, at.lane);
  float a[triangle_size(D)];
  MBF_UNROLL
  for (int i = 0; i < triangle_size(D); ++i) a[i] = stats[i * kTileBlocks];
  if (update) {
    rank_one_ema([&](int i) { return StatsSlot{stats + i * kTileBlocks, &a[i]}; },
                 SharedVector{&grads[at.lane * stage_stride(D)]}, job.short_beta, job.short_rest,
                 Const<D>{});
    float sum = 0;
    MBF_UNROLL
    for (int e = 0; e < D; ++e) sum += a[triangle_index(e, e)];
    trace = sum;
  }
  if (!invert) return;
  float scale = 1.0f;
  if (job.debias) {
    const double weight = job.tallies[at.tile].weight;  // as it was before the update
    scale = without_bias(update ? updated_weight(job, weight) : weight);
  }
  const int failed =
      invert_block<D>(a, scale, damping_of(job, segment()), inverse_limit(job.short_inverse));
  const WarpPlace to = warp_place(segment());
  if (!to.exists) return;  // padding keeps its zeros
  if (failed == 0) store_inverse<D>(job, triangle_offset<D>(to.tile, to.lane), a);
  job.info[to.tile * kTileBlocks + to.lane % kTileBlocks] = failed;
}

// Stores the tallies of updated tiles. All lanes call it.
__device__ __forceinline__ void finish_tally(const RunHeader& job, const Segment& segment,
                                             float trace) {
  __syncwarp();  // all lanes have read the old weight
  const WarpPlace at = warp_place(segment);
  const bool update = at.tile_exists && job.update.contains(at.tile);
  const double sum = sum_over_lanes<kTileBlocks>(update ? finite_or_zero(trace) : 0.0);
  if (!update || at.lane % kTileBlocks != 0) return;
  const double weight = updated_weight(job, job.tallies[at.tile].weight);
  job.tallies[at.tile] = {weight, weight > 0 ? sum / weight : 0.0};
}

// Adds up the norms of a thread block, and those of its tensor.
__device__ __forceinline__ void store_norms(const RunHeader& job, const Segment& segment,
                                            double direction, double adam) {
  __shared__ TileNorms sums[kWarps];
  const TileNorms own{sum_over_lanes<32>(direction), sum_over_lanes<32>(adam)};
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = own;
  __syncthreads();
  TileNorms all = sums[0];
  for (int warp = 1; warp < kWarps; ++warp) {
    all.direction += sums[warp].direction;
    all.adam += sums[warp].adam;
  }
  add_up_norms<kThreadBlockThreads, kThreadTiles>(job, segment, all);
}

// Updates M and W or, with target norms, M and P M. P is read from memory, even if it was just
// computed and is in the cache: P, M and u of a 9 x 9 block together would not fit in registers.
template <int D>
__device__ __forceinline__ void step_blocks(const RunParameters& p, const Segment& segment,
                                            ThreadStages<D>& stage) {
  const RunHeader& job = p.job;
  const WarpPlace at = warp_place(segment);
  const int64_t offset = triangle_offset<D>(at.tile, at.lane);
  // Until __syncwarp a lane reads and writes only its own block of the stages.
  float* own_m = &stage.momenta[at.lane * stage_stride(D)];
  const float* own_d = &stage.grads[at.lane * stage_stride(D)];
  float* own_w = &stage.params[at.lane * stage_stride(D)];
  float m[D], u[D];
  MBF_UNROLL
  for (int e = 0; e < D; ++e) {
    own_m[e] = accumulated(job.scalars, own_m[e], own_d[e]);
    m[e] = looked_ahead(job.scalars, own_m[e], own_d[e]);
    u[e] = 0;
  }
  if (at.exists) {
    if (job.short_inverse) {
      const auto* from = static_cast<const __nv_bfloat16*>(job.inverse) + offset;
      symmetric_product([&](int i) { return widen(from[i * kTileBlocks]); }, m, u, Const<D>{});
    } else {
      const auto* from = static_cast<const float*>(job.inverse) + offset;
      symmetric_product([&](int i) { return from[i * kTileBlocks]; }, m, u, Const<D>{});
    }
  }
  const StepScalars<float> scalars = live_step(job).scalars;
  const bool moves = job.directions == nullptr;
  MBF_UNROLL
  for (int e = 0; e < D; ++e) {
    own_w[e] = moves ? moved(scalars, own_w[e], u[e]) : u[e];
  }
  __syncwarp();
  send<D>(natural_view(p, segment.momenta, segment.natural[2], at.block, at.count), at.lane,
          stage.momenta);
  if (moves) {
    send<D>(natural_view(p, segment.params, segment.natural[0], at.block, at.count), at.lane,
            stage.params);
    return;
  }
  const int tiles = (at.count + kTileBlocks - 1) / kTileBlocks;
  const int64_t first = (at.tile - at.lane / kTileBlocks) * kTileBlocks;
  send<D>({job.directions, Format::Float32, nullptr, first, tiles * kTileBlocks}, at.lane,
          stage.params);
  double adam = 0;
  if (job.refresh_targets && at.exists) {
    const float* stats = job.stats + offset;
    adam = finite_or_zero(clipped_adam_square(
        [&](int e) { return stats[triangle_index(e, e) * kTileBlocks]; }, m,
        scalars.momentum_correction, without_bias(job.tallies[at.tile].weight), Const<D>{}));
  }
  store_norms(job, segment, at.exists ? square_of_block<D>(u) : 0.0, adam);
}

// Everything the job asks of the blocks of one thread block. `StepOnly`: the job has no update and
// no inversion.
template <int D, bool StepOnly>
__global__ void __launch_bounds__(kThreadBlockThreads, wanted_residents(D))
    run_thread_blocks(const __grid_constant__ RunParameters p) {
  __shared__ ThreadStages<D> stages[kWarps];
  ThreadStages<D>& stage = stages[threadIdx.x / 32];
  const uint32_t index = own_segment(p);
  if (threadIdx.x % 32 == 0) stage.segment = index;
  fetch_blocks<D>(p, entries(p)[index], stage);  // ends with __syncwarp
  const auto segment = [&]() -> const Segment& {
    return entries(p)[*static_cast<const volatile uint32_t*>(&stage.segment)];  // see warp_place
  };
  if constexpr (!StepOnly) {
    __shared__ float traces[kThreadBlockThreads];
    refresh_blocks<D>(p.job, segment, stage.grads, traces[threadIdx.x]);
    if (live_step(p.job).update) finish_tally(p.job, segment(), traces[threadIdx.x]);
    if (!p.job.step) return;
  }
  step_blocks<D>(p, segment(), stage);
}

}  // namespace mbf::cuda
