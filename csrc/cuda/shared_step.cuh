// The step of blocks that rows share: a thread block takes a strip of pieces of some rows.
//
// The new momenta go to shared memory, P follows in slices of a few rows, and every thread sums
// u = M P for eight rows and four columns in registers. u then takes the place of the momenta in
// shared memory, from where it is applied in the order of memory.
#pragma once

#include "../core/scalar_lane.h"
#include "rescaled_move.cuh"
#include "row_memory.cuh"

namespace mbf::cuda {

// The task of a thread block.
struct StepTask {
  RowTile tile;
  int64_t index;
  int64_t piece;  // the first
  int pieces;
  int padded;   // columns of a piece in shared memory
  int columns;  // of a whole strip there
  int stride;   // between its rows
  int groups;   // of threads with the same columns
};

// A thread keeps its sums in registers from M P on; what the thread block has in common is in
// shared memory.
struct StepMemory {
  alignas(16) float rows[kRowsRoom];  // M, then the terms of Adam's norm, then u
  alignas(16) float inverse[kDepth * kMaxSharedBlock];
  int32_t matrix[kMaxSharedBlock];  // of a padded column: offset in the strip's matrices, or -1
  uint8_t depth[kMaxSharedBlock];   // of a padded column: rows of its P
  StripColumns columns;
  StepTask task;
};

__device__ __forceinline__ StepTask step_task(const SharedStepEntry& entry) {
  const SharedShape& shape = entry.shape;
  const Strip strip(shape.width, shape.pieces, kQuad);
  StepTask task;
  task.index = entry.task + (blockIdx.x - entry.first_unit);
  task.padded = strip.padded;
  task.columns = strip.columns();
  task.stride = strip.stride();
  task.groups = row_groups(strip);
  const int64_t strips = (shape.pieces + strip.pieces - 1) / strip.pieces;
  const int64_t height = task.groups * kThreadRows;
  const int64_t tiles = (shape.rows + height - 1) / height;
  const int64_t row_tile = task.index / strips;
  task.piece = (task.index - row_tile * strips) * strip.pieces;
  const int64_t pieces = min(static_cast<int64_t>(strip.pieces), shape.pieces - task.piece);
  task.pieces = static_cast<int>(pieces);
  RowTile& tile = task.tile;
  tile.group = row_tile / tiles;
  tile.row = (row_tile - tile.group * tiles) * height;
  tile.rows = static_cast<int>(min(height, shape.rows - tile.row));
  tile.column = task.piece * shape.width;
  const int64_t end = min(shape.columns, tile.column + pieces * shape.width);
  tile.columns = static_cast<int>(end - tile.column);
  tile.bias = shape.bias && end == shape.columns;
  return task;
}

__device__ __forceinline__ StepScalars<double> live_scalars(const SharedStepHeader& job) {
  StepScalars<double> scalars = job.scalars;
  if (job.controls != nullptr) {
    scalars.lr = job.controls[0];
    scalars.momentum_correction = job.controls[1];
  }
  return scalars;
}

// Clears padding, which products read, and sets the tables.
__device__ __forceinline__ void prepare_strip(const SharedShape& shape, const StepTask& task,
                                              StepMemory& memory) {
  const int padded = task.padded;
  const int columns = task.columns;
  memory.columns.set(task.tile.columns, shape.width, padded);
  for (int s = static_cast<int>(threadIdx.x); s < columns; s += kStepThreads) {
    const int piece = s / padded;
    const int c = s - piece * padded;
    const int left = task.tile.columns - piece * shape.width;
    const int width = max(0, min(shape.width, left));
    memory.matrix[s] = c < width ? piece * shape.width * shape.width + c : -1;
    memory.depth[s] = static_cast<uint8_t>(width);
  }
  if (columns != task.tile.columns) {
    const int quads = task.groups * kThreadRows * task.stride / kQuad;
    for (int i = static_cast<int>(threadIdx.x); i < quads; i += kStepThreads) {
      quad_at(&memory.rows[i * kQuad]) = {0, 0, 0, 0};
    }
  }
  __syncthreads();
}

// M <- momentum M + D in the tensor; what P is multiplied with in shared memory.
__device__ __forceinline__ void accumulate_rows(const SharedStepParameters& p,
                                                const SharedStepEntry& entry, const StepTask& task,
                                                StepMemory& memory) {
  const StepScalars<float> scalars =
      p.job.scalars.map([](double x) { return static_cast<float>(x); });
  const int rows = task.tile.rows;
  for_parts(entry.shape, task.tile, [&](int part, int columns, int first, auto quads) {
    constexpr bool kQuads = decltype(quads)::value;
    const auto view = [&](const RowPointers& pointers, int tensor) {
      return row_memory(p, pointers, entry.natural + 2 * tensor, part, entry.shape, task.tile);
    };
    const RowMemory grads = view(entry.grads, 1);
    const RowMemory momenta = view(entry.momenta, 2);
    for_places<kStepThreads, kQuads>(rows, columns, [&](const Places& at) {
      float d[kQuad], m[kQuad];
      fetch<kQuads>(grads, at, rows, d);
      fetch<kQuads>(momenta, at, rows, m);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) m[j] = accumulated(scalars, m[j], d[j]);
      send<kQuads>(momenta, at, rows, m);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) m[j] = looked_ahead(scalars, m[j], d[j]);
      float* to = memory.rows;
      if constexpr (kQuads) {
        const int place = memory.columns.place[at.column[0]];
        quad_at(to + at.row[0] * task.stride + place) = {m[0], m[1], m[2], m[3]};
      } else {
        MBF_UNROLL
        for (int j = 0; j < kQuad; ++j) {
          if (at.row[j] < rows) {
            to[at.row[j] * task.stride + memory.columns.place[first + at.column[j]]] = m[j];
          }
        }
      }
    });
  });
}

using Sums = float[kThreadRows][kQuad];

// Rows k .. k + depth - 1 of the strip's matrices, side by side; zeros where a piece has none.
__device__ __forceinline__ void load_slice(const SharedShape& shape, const float* inverse,
                                           const StepTask& task, int k, int depth,
                                           StepMemory& memory) {
  const int columns = task.columns;
  for_places<kStepThreads, false>(depth, columns, [&](const Places& at) {
    float x[kQuad];
    MBF_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      x[j] = 0;
      const int row = k + at.row[j];
      const int start = memory.matrix[at.column[j]];
      const bool there = at.row[j] < depth && start >= 0 && row < memory.depth[at.column[j]];
      if (there) x[j] = inverse[start + row * shape.width];
    }
    MBF_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      if (at.row[j] < depth) memory.inverse[at.row[j] * columns + at.column[j]] = x[j];
    }
  });
}

// u = M P for the rows and columns of this thread. Ends after the last use of M.
__device__ __forceinline__ void multiply_rows(const SharedStepHeader& job, const SharedShape& shape,
                                              const StepTask& task, StepMemory& memory,
                                              Sums& sums) {
  const int columns = task.columns;
  const int across = columns / kQuad;
  const int column = static_cast<int>(threadIdx.x) % across * kQuad;
  const int own = static_cast<int>(threadIdx.x) / across;
  const bool works = own < task.groups;
  const int64_t block = task.tile.group * shape.pieces + task.piece;
  const float* inverse = job.inverse + shape.matrix + block * shape.width * shape.width;
  const float* rows = memory.rows + own * task.stride + column / task.padded * task.padded;
  MBF_UNROLL
  for (int r = 0; r < kThreadRows; ++r) {
    MBF_UNROLL
    for (int c = 0; c < kQuad; ++c) sums[r][c] = 0;
  }
  for (int k = 0; k < task.padded; k += kDepth) {
    const int depth = min(kDepth, task.padded - k);
    load_slice(shape, inverse, task, k, depth, memory);
    __syncthreads();
    for (int i = 0; works && i < depth; i += kQuad) {
      float4 right[kQuad];
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        right[j] = quad_at(memory.inverse + (i + j) * columns + column);
      }
      MBF_UNROLL
      for (int r = 0; r < kThreadRows; ++r) {
        const float4 left = quad_at(rows + r * task.groups * task.stride + k + i);
        const float m[kQuad] = {left.x, left.y, left.z, left.w};
        MBF_UNROLL
        for (int j = 0; j < kQuad; ++j) {
          sums[r][0] += m[j] * right[j].x;
          sums[r][1] += m[j] * right[j].y;
          sums[r][2] += m[j] * right[j].z;
          sums[r][3] += m[j] * right[j].w;
        }
      }
    }
    __syncthreads();
  }
}

// The sum over the pieces of all rows of f(padded piece in shared memory), for one thread.
template <class F>
__device__ __forceinline__ double sum_of_pieces(const StepTask& task, const float* rows, F f) {
  double sum = 0;
  for (int i = static_cast<int>(threadIdx.x); i < task.tile.rows * task.pieces; i += kStepThreads) {
    const int row = i / task.pieces;
    const int piece = i - row * task.pieces;
    sum += f(rows + row * task.stride + piece * task.padded);
  }
  return sum;
}

// The squared norm of a piece, in double where float32 would overflow or lose digits; zero if it is
// not finite.
__device__ __forceinline__ double square_of_piece(const float* u, int padded) {
  float square = 0;
  for (int c = 0; c < padded; c += kQuad) {
    const float4 x = quad_at(u + c);
    square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
  }
  if (square > 1e-30f && square < 1e30f) return square;
  double wide = 0;
  for (int c = 0; c < padded; ++c) wide += static_cast<double>(u[c]) * u[c];
  return isfinite(wide) ? wide : 0.0;
}

// Replaces M in shared memory by the squares of Adam's step. They are NaN where M is not finite.
__device__ __forceinline__ void take_adam_terms(const SharedStepParameters& p,
                                                const SharedStepEntry& entry, const StepTask& task,
                                                StepMemory& memory) {
  const SharedShape& shape = entry.shape;
  const float correction = static_cast<float>(live_scalars(p.job).momentum_correction);
  const int rows = task.tile.rows;
  const double* weights =
      p.job.weights + shape.first_block + task.tile.group * shape.pieces + task.piece;
  for_parts(shape, task.tile, [&](int part, int columns, int first, auto quads) {
    constexpr bool kQuads = decltype(quads)::value;
    const RowMemory squares =
        row_memory(p, entry.squares, entry.natural + 6, part, shape, task.tile);
    for_places<kStepThreads, kQuads>(rows, columns, [&](const Places& at) {
      float v[kQuad];
      fetch<kQuads>(squares, at, rows, v);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        if (at.row[j] >= rows) continue;
        const int place = memory.columns.place[first + at.column[j]];
        const double weight = weights[place / task.padded];
        const float unbiased = v[j] * (weight > 0 ? static_cast<float>(1.0 / weight) : 1.0f);
        float& m = memory.rows[at.row[j] * task.stride + place];
        const float x = correction * m * reciprocal(square_root(unbiased) + 1e-8f);
        m = at_most(x * x, 1.0f) + 0.0f * m;
      }
    });
  });
}

__device__ __forceinline__ double adam_square(const StepTask& task, const float* rows) {
  return sum_of_pieces(task, rows, [&](const float* terms) {
    float sum = 0;
    for (int c = 0; c < task.padded; ++c) sum += terms[c];
    return finite_or_zero(sum);
  });
}

// The elements of a row of directions that a tile begins with.
__device__ __forceinline__ float* direction_row(const SharedStepHeader& job,
                                                const SharedStepEntry& entry, const RowTile& tile,
                                                int row) {
  const int64_t stride = round_up(entry.shape.columns, kTileBlocks);
  return job.directions + entry.directions +
         (tile.group * entry.shape.rows + tile.row + row) * stride + tile.column;
}

// Moves the parameters of a tile: w = f(w, row, column of the tile).
template <class F>
__device__ __forceinline__ void move_rows(const SharedStepParameters& p,
                                          const SharedStepEntry& entry, const RowTile& tile, F f) {
  for_parts(entry.shape, tile, [&](int part, int columns, int first, auto quads) {
    constexpr bool kQuads = decltype(quads)::value;
    const RowMemory params = row_memory(p, entry.params, entry.natural, part, entry.shape, tile);
    if (params.data == nullptr) return;
    for_places<kStepThreads, kQuads>(tile.rows, columns, [&](const Places& at) {
      float w[kQuad];
      fetch<kQuads>(params, at, tile.rows, w);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        if (at.row[j] < tile.rows) w[j] = f(w[j], at.row[j], first + at.column[j]);
      }
      send<kQuads>(params, at, tile.rows, w);
    });
  });
}

// Thread blocks that must fit on a multiprocessor, which caps the registers of a thread at 96: with
// the 80 that six would leave, ptxas spills.
constexpr int kStepResidents = 5;

// A step or, if it is rescaled, its first pass.
template <bool Rescaled>
__global__ void __launch_bounds__(kStepThreads, kStepResidents)
    step_shared_rows(const __grid_constant__ SharedStepParameters p) {
  __shared__ StepMemory memory;
  const SharedStepEntry& entry = entries(p)[own_segment(p)];
  const StepTask& task = memory.task;
  if (threadIdx.x == 0) memory.task = step_task(entry);
  __syncthreads();
  prepare_strip(entry.shape, task, memory);
  accumulate_rows(p, entry, task, memory);
  // The first slice of P is loaded before the barrier that completes M.
  Sums sums;
  multiply_rows(p.job, entry.shape, task, memory, sums);

  double adam = 0;
  if (Rescaled && p.job.refresh_targets) {
    take_adam_terms(p, entry, task, memory);
    __syncthreads();
    adam = adam_square(task, memory.rows);
    __syncthreads();
  }
  const int across = task.columns / kQuad;
  const int own = static_cast<int>(threadIdx.x) / across;
  if (own < task.groups) {
    float* to = memory.rows + own * task.stride + static_cast<int>(threadIdx.x) % across * kQuad;
    MBF_UNROLL
    for (int r = 0; r < kThreadRows; ++r) {
      quad_at(to + r * task.groups * task.stride) = {sums[r][0], sums[r][1], sums[r][2],
                                                     sums[r][3]};
    }
  }
  __syncthreads();
  if constexpr (!Rescaled) {
    const StepScalars<float> scalars =
        live_scalars(p.job).map([](double x) { return static_cast<float>(x); });
    move_rows(p, entry, task.tile, [&](float w, int row, int column) {
      return moved(scalars, w, memory.rows[row * task.stride + memory.columns.place[column]]);
    });
    return;
  }
  for_places<kStepThreads, false>(task.tile.rows, task.tile.columns, [&](const Places& at) {
    MBF_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      if (at.row[j] >= task.tile.rows) continue;
      direction_row(p.job, entry, task.tile, at.row[j])[at.column[j]] =
          memory.rows[at.row[j] * task.stride + memory.columns.place[at.column[j]]];
    }
  });
  const double direction = sum_of_pieces(
      task, memory.rows, [&](const float* u) { return square_of_piece(u, task.padded); });
  const TaskNorms norms{sum_over_threads<kStepThreads>(direction),
                        p.job.refresh_targets ? sum_over_threads<kStepThreads>(adam) : 0.0};
  if (threadIdx.x == 0) p.job.norms[entry.norms + task.index] = norms;
}

// The factors that give the directions of layers their target norms, one thread block per layer;
// new target norms if the step refreshes them.
__global__ void __launch_bounds__(kTensorThreads)
    scale_shared_layers(const __grid_constant__ SharedScaleParameters p) {
  const SharedScaleEntry& entry = entries(p)[blockIdx.x];
  double direction = 0;
  double adam = 0;
  for (int64_t i = threadIdx.x; i < entry.count; i += kTensorThreads) {
    direction += p.job.norms[entry.norms + i].direction;
    adam += p.job.norms[entry.norms + i].adam;
  }
  direction = sum_over_threads<kTensorThreads>(direction);
  adam = sum_over_threads<kTensorThreads>(adam);
  if (threadIdx.x != 0) return;
  double& target = p.job.target_norms[p.job.target_per_layer ? entry.layer : 0];
  if (p.job.refresh_targets) target = sqrt(adam);
  p.job.scales[entry.layer] = direction > 0 ? target / sqrt(direction) : 0.0;
}

// The second pass of a rescaled step.
__global__ void __launch_bounds__(kStepThreads)
    apply_shared_directions(const __grid_constant__ SharedStepParameters p) {
  const SharedStepEntry& entry = entries(p)[own_segment(p)];
  const StepTask task = step_task(entry);
  const StepScalars<double> scalars = live_scalars(p.job);
  const Move move{scalars.lr * p.job.scales[entry.layer],
                  static_cast<float>(scalars.lr * scalars.weight_decay)};
  move_rows(p, entry, task.tile, [&](float w, int row, int column) {
    return move(w, direction_row(p.job, entry, task.tile, row)[column]);
  });
}

}  // namespace mbf::cuda
