// The statistics of blocks that rows share: a thread block sums D D^T over a part of the rows, for
// a strip of pieces.
//
// The lower triangle of D^T D is cut into patches of 8 x 8. A thread has one patch in registers and
// sums it over every n-th row, where n groups of threads have all patches of the strip; the groups
// are added up through shared memory. Sums over several parts of the rows go to scratch memory,
// from where a second kernel adds them to G. All sums have an order of their own, so that results
// do not depend on the scheduling of thread blocks.
#pragma once

#include "row_memory.cuh"

namespace mbf::cuda {

constexpr int kMostStripPieces = kPiecesStrip / kOctet;

// The task of a thread block: the pieces of its strip that are updated, in a part of the rows.
struct UpdateTask {
  int64_t group, part;
  int64_t piece;  // the first
  int pieces;     // 0: nothing is updated here
  int padded;     // columns of a piece in shared memory
  int stride;     // between rows there
  int patches;
  int groups;  // of threads that have all patches

  __device__ __forceinline__ RowTile tile(const SharedShape& shape, int64_t row, int rows) const {
    const int64_t column = piece * shape.width;
    const int64_t end = min(shape.columns, column + int64_t{pieces} * shape.width);
    return {group,
            row,
            column,
            rows,
            static_cast<int>(end - column),
            shape.bias && end == shape.columns};
  }
};

// Threads keep their patches in registers; what the thread block has in common is in shared memory.
struct UpdateMemory {
  alignas(16) float rows[kRowsRoom];
  StripColumns columns;
  int left_out[kMostStripPieces];
  UpdateTask task;
  RowTile tile;
};

__device__ __forceinline__ UpdateTask update_task(const SharedUpdateHeader& job,
                                                  const SharedUpdateEntry& entry) {
  const SharedShape& shape = entry.shape;
  const Strip strip(shape.width, shape.pieces, kOctet);
  UpdateTask task;
  const int64_t index = entry.task + (blockIdx.x - entry.first_unit);
  const int64_t strips = (shape.pieces + strip.pieces - 1) / strip.pieces;
  const int64_t rest = index / strips;
  task.group = rest / entry.parts;
  task.part = rest - task.group * entry.parts;
  const int64_t first = (index - rest * strips) * strip.pieces;
  const int64_t before = shape.first_block + task.group * shape.pieces;
  task.piece = max(first, job.first - before);
  const int64_t end = min(min(shape.pieces, first + strip.pieces), job.last - before);
  task.pieces = static_cast<int>(max(int64_t{0}, end - task.piece));
  task.padded = strip.padded;
  task.stride = strip.stride();
  task.patches = task.pieces * patches_of_piece(strip.padded);
  task.groups = task.pieces == 0 ? 0 : kUpdateThreads / task.patches;
  return task;
}

// The first row and column of a patch of the lower triangle, in patches.
struct PatchPlace {
  int row, column;
  __device__ __forceinline__ explicit PatchPlace(int index) : row(0) {
    while ((row + 1) * (row + 2) / 2 <= index) ++row;
    column = index - row * (row + 1) / 2;
  }
};

// G <- beta G + (1 - beta) / rows * sum, for an element of a patch and the one across the diagonal.
__device__ __forceinline__ void average_element(const SharedUpdateHeader& job,
                                                const SharedShape& shape, int64_t block, int patch,
                                                int element, float sum) {
  const PatchPlace at(patch);
  const int i = at.row * kOctet + element / kOctet;
  const int j = at.column * kOctet + element % kOctet;
  const int64_t left = shape.columns - block % shape.pieces * shape.width;
  if (i >= min(int64_t{shape.width}, left) || j > i) return;
  float* stats = job.stats + shape.matrix + block * shape.width * shape.width;
  const float share = static_cast<float>((1.0 - job.beta) / static_cast<double>(shape.rows));
  const float value = static_cast<float>(job.beta) * stats[i * shape.width + j] + share * sum;
  stats[i * shape.width + j] = value;
  stats[j * shape.width + i] = value;
}

__device__ __forceinline__ void count_update(const SharedUpdateHeader& job, int64_t block,
                                             int left_out) {
  job.weights[block] = job.beta * job.weights[block] + (1.0 - job.beta);
  job.left_out[block] += left_out;
}

// Where the sums over a part of the rows of a block are kept.
template <class Entry>
__device__ __forceinline__ float* partial_of(const SharedUpdateHeader& job, const Entry& entry,
                                             int64_t block, int64_t part, int padded) {
  return job.partials + entry.partials + (block * entry.parts + part) * partial_floats(padded);
}

// Loads a tile of D. Returns whether any thread has seen an element whose square is so large that a
// sum of squares may not be finite; ends with a barrier.
__device__ __forceinline__ bool load_gradients(const SharedUpdateParameters& p,
                                               const SharedUpdateEntry& entry,
                                               const UpdateTask& task, const RowTile& tile,
                                               UpdateMemory& memory) {
  constexpr float kSafe = 1e18f;  // 128 of its squares have a finite sum
  bool safe = true;
  for_parts(entry.shape, tile, [&](int part, int columns, int first, auto quads) {
    constexpr bool kQuads = decltype(quads)::value;
    const RowMemory grads = row_memory(p, entry.grads, entry.natural, part, entry.shape, tile);
    for_places<kUpdateThreads, kQuads>(tile.rows, columns, [&](const Places& at) {
      float d[kQuad];
      fetch<kQuads>(grads, at, tile.rows, d);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        safe = safe && fabsf(d[j]) <= kSafe;
        if (at.row[j] < tile.rows) {
          const int place = memory.columns.place[first + at.column[j]];
          memory.rows[at.row[j] * task.stride + place] = d[j];
        }
      }
    });
  });
  return __syncthreads_or(!safe);
}

// Zeros in place of pieces of rows whose squares are not finite.
__device__ __forceinline__ void drop_bad_pieces(const UpdateTask& task, const RowTile& tile,
                                                UpdateMemory& memory) {
  for (int i = static_cast<int>(threadIdx.x); i < tile.rows * task.pieces; i += kUpdateThreads) {
    const int row = i / task.pieces;
    const int piece = i - row * task.pieces;
    float* d = memory.rows + row * task.stride + piece * task.padded;
    float square = 0;
    for (int c = 0; c < task.padded; ++c) square += d[c] * d[c];
    if (isfinite(square)) continue;
    for (int c = 0; c < task.padded; ++c) d[c] = 0;
    atomicAdd(&memory.left_out[piece], 1);
  }
}

// v <- beta v + (1 - beta) D^2
__device__ __forceinline__ void update_squares(const SharedUpdateParameters& p,
                                               const SharedUpdateEntry& entry,
                                               const UpdateTask& task, const RowTile& tile,
                                               const UpdateMemory& memory) {
  const float beta = static_cast<float>(p.job.beta);
  const float rest = static_cast<float>(1.0 - p.job.beta);
  for_parts(entry.shape, tile, [&](int part, int columns, int first, auto quads) {
    constexpr bool kQuads = decltype(quads)::value;
    const RowMemory squares =
        row_memory(p, entry.squares, entry.natural + 2, part, entry.shape, tile);
    if (squares.data == nullptr) return;
    for_places<kUpdateThreads, kQuads>(tile.rows, columns, [&](const Places& at) {
      float v[kQuad];
      fetch<kQuads>(squares, at, tile.rows, v);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        if (at.row[j] >= tile.rows) continue;
        const int place = memory.columns.place[first + at.column[j]];
        const float d = memory.rows[at.row[j] * task.stride + place];
        v[j] = beta * v[j] + rest * (d * d);
      }
      send<kQuads>(squares, at, tile.rows, v);
    });
  });
}

using Patch = float[kOctet][kOctet];

// Adds the outer products of every groups-th row to a thread's patch.
__device__ __forceinline__ void add_outer_products(const UpdateTask& task, int rows, int group,
                                                   const float* left, const float* right,
                                                   Patch& sums) {
  for (int r = group; r < rows; r += task.groups) {
    float a[kOctet], b[kOctet];
    MBF_UNROLL
    for (int c = 0; c < kOctet; c += kQuad) {
      const float4 x = quad_at(left + r * task.stride + c);
      const float4 y = quad_at(right + r * task.stride + c);
      a[c] = x.x, a[c + 1] = x.y, a[c + 2] = x.z, a[c + 3] = x.w;
      b[c] = y.x, b[c + 1] = y.y, b[c + 2] = y.z, b[c + 3] = y.w;
    }
    MBF_UNROLL
    for (int i = 0; i < kOctet; ++i) {
      MBF_UNROLL
      for (int j = 0; j < kOctet; ++j) sums[i][j] += a[i] * b[j];
    }
  }
}

// Adds up the groups, two rows of all patches at a time, and calls f(patch, element, sum).
template <class F>
__device__ __forceinline__ void for_patch_sums(const UpdateTask& task, const Patch& sums,
                                               UpdateMemory& memory, F f) {
  const bool works = static_cast<int>(threadIdx.x) < task.patches * task.groups;
  const int outputs = task.patches * kPatchSlice;
  MBF_UNROLL
  for (int slice = 0; slice < kPatchElements / kPatchSlice; ++slice) {
    __syncthreads();
    if (works) {
      MBF_UNROLL
      for (int e = 0; e < kPatchSlice; ++e) {
        memory.rows[static_cast<int>(threadIdx.x) * kPatchSlice + e] =
            sums[slice * 2 + e / kOctet][e % kOctet];
      }
    }
    __syncthreads();
    for (int o = static_cast<int>(threadIdx.x); o < outputs; o += kUpdateThreads) {
      float sum = 0;
      for (int g = 0; g < task.groups; ++g) sum += memory.rows[g * outputs + o];
      f(o / kPatchSlice, slice * kPatchSlice + o % kPatchSlice, sum);
    }
  }
}

__global__ void __launch_bounds__(kUpdateThreads, 2)
    update_shared_rows(const __grid_constant__ SharedUpdateParameters p) {
  __shared__ UpdateMemory memory;
  const SharedUpdateEntry& entry = entries(p)[own_segment(p)];
  const SharedShape& shape = entry.shape;
  const UpdateTask& task = memory.task;
  if (threadIdx.x == 0) memory.task = update_task(p.job, entry);
  __syncthreads();
  if (task.pieces == 0) return;
  const int padded = task.padded;
  const int of_piece = patches_of_piece(padded);
  memory.columns.set(task.pieces * shape.width, shape.width, padded);
  for (int i = static_cast<int>(threadIdx.x) * kQuad; i < kRowsRoom; i += kUpdateThreads * kQuad) {
    quad_at(memory.rows + i) = {0, 0, 0, 0};  // padding, which products read
  }
  if (threadIdx.x < kMostStripPieces) memory.left_out[threadIdx.x] = 0;
  __syncthreads();

  const int group = static_cast<int>(threadIdx.x) / task.patches;
  const int patch = static_cast<int>(threadIdx.x) % task.patches;
  const PatchPlace at(patch % of_piece);
  const float* piece = memory.rows + patch / of_piece * padded;
  Patch sums;
  MBF_UNROLL
  for (int i = 0; i < kOctet; ++i) {
    MBF_UNROLL
    for (int j = 0; j < kOctet; ++j) sums[i][j] = 0;
  }
  const int64_t height = kRowsRoom / task.stride;
  const int64_t end = min(shape.rows, (task.part + 1) * entry.part_rows);
  for (int64_t row = task.part * entry.part_rows; row < end; row += height) {
    if (threadIdx.x == 0)
      memory.tile = task.tile(shape, row, static_cast<int>(min(height, end - row)));
    __syncthreads();
    const RowTile& tile = memory.tile;
    if (load_gradients(p, entry, task, tile, memory)) {
      drop_bad_pieces(task, tile, memory);
      __syncthreads();
    }
    update_squares(p, entry, task, tile, memory);
    if (group < task.groups) {
      add_outer_products(task, tile.rows, group, piece + at.row * kOctet,
                         piece + at.column * kOctet, sums);
    }
    __syncthreads();
  }

  const int64_t block = task.group * shape.pieces + task.piece;  // in the layer
  const bool single = entry.parts == 1;
  for_patch_sums(task, sums, memory, [&](int index, int element, float sum) {
    const int64_t own = block + index / of_piece;
    const int of_block = index % of_piece;
    if (single) {
      average_element(p.job, shape, own, of_block, element, sum);
    } else {
      partial_of(p.job, entry, own, task.part, padded)[of_block * kPatchElements + element] = sum;
    }
  });
  if (static_cast<int>(threadIdx.x) >= task.pieces) return;
  const int left_out = memory.left_out[threadIdx.x];
  const int64_t own = block + threadIdx.x;
  if (single) {
    count_update(p.job, shape.first_block + own, left_out);
  } else {
    float* partial = partial_of(p.job, entry, own, task.part, padded);
    partial[of_piece * kPatchElements] = __int_as_float(left_out);
  }
}

// Adds up the parts of one block.
__global__ void __launch_bounds__(kTensorThreads)
    average_shared_blocks(const __grid_constant__ SharedAverageParameters p) {
  __shared__ int left_out;
  const SharedAverageEntry& entry = entries(p)[own_segment(p)];
  const SharedShape& shape = entry.shape;
  const int64_t block = entry.block + (blockIdx.x - entry.first_unit);
  const int padded = static_cast<int>(round_up(shape.width, kOctet));
  const int elements = patches_of_piece(padded) * kPatchElements;
  const float* partials = partial_of(p.job, entry, block, 0, padded);
  const int64_t stride = partial_floats(padded);
  if (threadIdx.x == 0) left_out = 0;
  __syncthreads();
  for (int e = static_cast<int>(threadIdx.x); e < elements; e += kTensorThreads) {
    float sum = 0;
#pragma unroll 8
    for (int64_t part = 0; part < entry.parts; ++part) sum += partials[part * stride + e];
    average_element(p.job, shape, block, e / kPatchElements, e % kPatchElements, sum);
  }
  for (int64_t part = threadIdx.x; part < entry.parts; part += kTensorThreads) {
    const int count = __float_as_int(partials[part * stride + elements]);
    if (count != 0) atomicAdd(&left_out, count);
  }
  __syncthreads();
  if (threadIdx.x == 0) count_update(p.job, shape.first_block + block, left_out);
}

}  // namespace mbf::cuda
