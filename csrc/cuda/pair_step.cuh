// Steps of a tile by a warp: its lanes i and i + 16 share block i.
//
// Lane i has the elements 0, 2, 4, ... of the block's vectors, lane i + 16 the others, so that the
// warp reads two neighbouring elements of 16 triangles, 128 contiguous bytes, at once. P is read
// once, in bands of four rows: an element adds to the sum of its row, which the two lanes add up
// at the end of the band, and to that of its column, which one of them has.
#pragma once

#include "../core/adam_step.h"
#include "../core/extent.h"
#include "../core/triangle.h"
#include "tile_stage.cuh"

namespace mbf::cuda {

constexpr int kBandRows = 4;

// Keeps the compiler from computing an address in global memory again at every use.
template <class T>
__device__ __forceinline__ void pin(const T*& address) {
  asm volatile("" : "+l"(address));
  __builtin_assume(__isGlobal(address));
}

// u = P m, of which elements beyond d are arbitrary. `Columns` is at least half of d; `stage` has m
// of this lane's block, and zeros up to the end of its last band. There are four rows at least.
template <int Columns, class Stored>
__device__ __forceinline__ void multiply_pair(const Stored* inverse, const float* stage, int half,
                                              int d, float (&u)[Columns]) {
  static_assert(Columns % 2 == 0);
  // With expanded bands every address is a constant away from `inverse`; of large blocks they would
  // be too much code.
  constexpr bool kExpanded = Columns <= 14;
  const int across = half * kTileBlocks;
  float m[Columns];
  MBF_UNROLL
  for (int k = 0; k < Columns; ++k) {
    u[k] = m[k] = 0;
    if (kExpanded && 2 * k < d) m[k] = stage[2 * k + half];
  }
  // All elements of large blocks would take too many registers; `volatile` keeps them out.
  const auto m_col = [&](int k) -> float {
    if constexpr (kExpanded) {
      return m[k];
    } else {
      return static_cast<const volatile float*>(stage)[2 * k + half];
    }
  };
  const bool lower = half == 0;
  const Stored* line = inverse + across;  // the first row of a band
  const auto add_band = [&](auto band) {
    const float4 four = reinterpret_cast<const float4*>(stage)[band];
    const float m_row[kBandRows] = {four.x, four.y, four.z, four.w};
    float sums[kBandRows] = {};
    const Stored* rows[kBandRows];
    MBF_UNROLL
    for (int r = 0; r < kBandRows; ++r) {
      // Beyond the last row, where m_row is zero, any memory before the end of the first row.
      const bool there = kBandRows * band + r <= kMaxThreadBlock || kBandRows * band + r < d;
      const int row = there ? r * band * kBandRows + triangle_size(r) : -kBandRows;
      rows[r] = line + row * kTileBlocks;
      if constexpr (!kExpanded) pin(rows[r]);
    }
    // The elements on the diagonal that the lower half has.
    const Stored* corners[2] = {rows[0] - across, rows[2] - across};
    if constexpr (!kExpanded) {
      pin(corners[0]);
      pin(corners[1]);
    }
    line += (kBandRows * kBandRows * band + triangle_size(kBandRows)) * kTileBlocks;
    // Columns 4 c .. 4 c + 3, of which this lane has two, of all rows.
    const auto load = [&](int c, float (&x)[2][kBandRows]) {
      MBF_UNROLL
      for (int t = 0; t < 2; ++t) {
        MBF_UNROLL
        for (int r = 0; r < kBandRows; ++r) {
          x[t][r] = widen(rows[r][(4 * c + 2 * t) * kTileBlocks]);
        }
      }
    };
    const auto add = [&](int c, const float (&x)[2][kBandRows]) {
      MBF_UNROLL
      for (int t = 0; t < 2; ++t) {
        MBF_UNROLL
        for (int r = 0; r < kBandRows; ++r) {
          sums[r] += x[t][r] * m_col(2 * c + t);
          u[2 * c + t] += x[t][r] * m_row[r];
        }
      }
    };
    // The square on the diagonal: the lower half has its columns 0 and 2, the upper half 1 and 3.
    const auto finish = [&](int c) {
      const auto own = [&](int r, int col) { return widen(rows[r][(4 * c + col) * kTileBlocks]); };
      const float corner = widen(corners[0][4 * c * kTileBlocks]);
      const float middle = widen(corners[1][(4 * c + 2) * kTileBlocks]);
      const float x1 = own(1, 0), x2 = own(2, 0), x3 = own(3, 0);
      const float y3 = own(3, 2);
      const float x0 = lower ? corner : 0.0f;
      const float y2 = lower ? middle : 0.0f;
      const float first = m_col(2 * c), second = m_col(2 * c + 1);
      sums[0] += x0 * first;
      sums[1] += x1 * first;
      sums[2] += x2 * first;
      sums[3] += x3 * first;
      sums[2] += y2 * second;
      sums[3] += y3 * second;
      u[2 * c] += (lower ? x1 : 0.0f) * m_row[1];
      u[2 * c] += x2 * m_row[2];
      u[2 * c] += x3 * m_row[3];
      u[2 * c + 1] += (lower ? y3 : 0.0f) * m_row[3];
      MBF_UNROLL
      for (int t = 0; t < 2; ++t) {
        const float given = lower ? sums[2 * t + 1] : sums[2 * t];
        const float kept = lower ? sums[2 * t] : sums[2 * t + 1];
        u[2 * c + t] += kept + __shfl_xor_sync(kWarp, given, kTileBlocks);
      }
    };
    // Two squares at a time, so that sixteen loads are in flight.
    MBF_UNROLL
    for (int c = 0; c < Columns / 2; c += 2) {
      const bool has_next = c + 1 < Columns / 2;
      float one[2][kBandRows], two[2][kBandRows];
      if (has_next && c + 1 < band) {
        load(c, one);
        load(c + 1, two);
        add(c, one);
        add(c + 1, two);
      } else if (has_next && c < band) {
        load(c, one);
        add(c, one);
        finish(c + 1);
      } else if (c == band) {
        finish(c);
      }
    }
  };
  if constexpr (kExpanded) {
    for_each(Const<0>{}, Const<Columns / 2>{}, [&](auto band) {
      if (kBandRows * band < d) add_band(band);
    });
  } else {
#pragma unroll 1
    for (int band = 0; kBandRows * band < d; ++band) add_band(band);
  }
}

// ||u||^2 of a tile, returned to lane 0. The lanes have u, and the stage has it, too.
template <int Columns>
__device__ __forceinline__ double square_of_tile(const TilePlace& at, int lane,
                                                 const float (&u)[Columns], const float* stage) {
  float square = 0;
  MBF_UNROLL
  for (int k = 0; k < Columns; ++k) {
    if (2 * k + lane / kTileBlocks < at.d) square += u[k] * u[k];
  }
  square += __shfl_xor_sync(kWarp, square, kTileBlocks);
  double direction = square;
  if (lane < at.count && !(square > 1e-30f && square < 1e30f)) {  // may not fit float32
    const float* own = stage + lane * tile_stride(at.d);
    direction = 0;
    for (int e = 0; e < at.d; ++e) direction += static_cast<double>(own[e]) * own[e];
    if (!isfinite(direction)) direction = 0;
  }
  return sum_over_lanes<kTileBlocks>(lane < at.count ? direction : 0.0);
}

// The squared norm of Adam's step over a tile, returned to lane 0. The stage has M.
__device__ __forceinline__ double adam_of_tile(const RunHeader& job, const TilePlace& at, int lane,
                                               const float* stage, float correction) {
  float adam = 0;
  if (lane < at.count) {
    const float* stats = job.stats + at.tile * triangle_size(at.d) * kTileBlocks + lane;
    adam = clipped_adam_square([&](int e) { return stats[triangle_index(e, e) * kTileBlocks]; },
                               stage + lane * tile_stride(at.d), correction,
                               without_bias(job.tallies[at.tile].weight), at.d);
  }
  return sum_over_lanes<kTileBlocks>(finite_or_zero(adam));
}

// Updates M and W of a tile or, with target norms, M and P M, whose norms are returned to lane 0.
// The stage has D and is overwritten.
template <int Columns>
__device__ __forceinline__ TileNorms step_tile(const RunParameters& p, const Segment& segment,
                                               const TilePlace& at, int lane, float* stage) {
  const RunHeader& job = p.job;
  const TileThreads threads{lane, 32};
  const auto view = [&](const void* data, Natural natural) {
    return natural_view(p, data, natural, at.block, at.count);
  };
  for_natural<Access::Update>(view(segment.momenta, segment.natural[2]), at, threads,
                              [&](float m, int place) {
                                const float gradient = stage[place];
                                const float fresh = accumulated(job.scalars, m, gradient);
                                stage[place] = looked_ahead(job.scalars, fresh, gradient);
                                return fresh;
                              });
  __syncwarp();
  const int half = lane / kTileBlocks;
  float* own = stage + lane % kTileBlocks * tile_stride(at.d);
  float u[Columns];
  const int64_t start = at.tile * triangle_size(at.d) * kTileBlocks + lane % kTileBlocks;
  if (job.short_inverse) {
    multiply_pair(static_cast<const __nv_bfloat16*>(job.inverse) + start, own, half, at.d, u);
  } else {
    multiply_pair(static_cast<const float*>(job.inverse) + start, own, half, at.d, u);
  }
  const StepScalars<float> scalars = live_step(job).scalars;
  TileNorms norms{};
  if (job.refresh_targets) {
    norms.adam = adam_of_tile(job, at, lane, stage, scalars.momentum_correction);
  }
  __syncwarp();  // all have read M
  MBF_UNROLL
  for (int k = 0; k < Columns; ++k) {
    if (2 * k < at.d) own[2 * k + half] = u[k];
  }
  __syncwarp();
  if (job.directions != nullptr) {
    const NaturalView out{job.directions, Format::Float32, nullptr, at.tile * kTileBlocks,
                          kTileBlocks};
    for_natural<Access::Write>(out, at, threads, [&](float, int place) { return stage[place]; });
    norms.direction = square_of_tile(at, lane, u, stage);
    return norms;
  }
  for_natural<Access::Update>(view(segment.params, segment.natural[0]), at, threads,
                              [&](float w, int place) { return moved(scalars, w, stage[place]); });
  return norms;
}

}  // namespace mbf::cuda
