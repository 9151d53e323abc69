// Dense matrices too large for one thread: 16 per thread block, each with a team of lanes.
#pragma once

#include "team_kernels.cuh"

namespace mbf::cuda {

template <int Kind>
__global__ void __launch_bounds__(kTeams[Kind].lanes* kTileBlocks)
    invert_team_matrices(const __grid_constant__ DenseParameters p) {
  constexpr TeamShape kShape = kTeams[Kind];
  constexpr int kWarps = kShape.lanes * kTileBlocks / 32;
  extern __shared__ float4 aligned_memory[];
  __shared__ int failed[kTileBlocks];
  const int d = p.block_size;
  const int chunk = chunk_elements(kShape, d);
  const int size = d * d;
  float* memory = reinterpret_cast<float*>(aligned_memory);
  const int64_t first = int64_t{blockIdx.x} * kTileBlocks;
  const int64_t left = p.count - first;
  const int count = left < kTileBlocks ? static_cast<int>(left) : kTileBlocks;
  const float* matrices = p.matrices + first * size;
  float* inverses = p.inverses + first * size;

  Team<kShape.lanes, kShape.patches> team(d, memory);
  // Calls f(index in `memory`, matrix, row, col) for the lower triangles of the matrices in rows
  // top .. end - 1. A warp has a row, neighbouring lanes have neighbouring columns.
  const auto for_rows = [&](int top, int end, auto f) {
    const int rows = min(d, end) - top;
    for (int line = threadIdx.x / 32; line < count * rows; line += kWarps) {
      const int matrix = line / rows;
      const int row = top + line - matrix * rows;
      const int place = triangle_index(row, 0) - triangle_size(top);
      for (int col = threadIdx.x % 32; col <= row; col += 32) {
        f((place + col) * kRowStride + matrix, matrix, row, col);
      }
    }
  };
  for_chunks(d, chunk, [&](int top, int end) {
    __syncthreads();
    for_rows(top, end, [&](int place, int matrix, int row, int col) {
      memory[place] = matrices[matrix * size + row * d + col];
    });
    __syncthreads();
    team.take(top, end, memory, 1.0f, p.damping);
  });
  __syncthreads();
  const int pivot = team.invert(inverse_limit(false));
  if (team.leads()) failed[team.block()] = pivot;
  for_chunks(d, chunk, [&](int top, int end) {
    __syncthreads();
    team.give(top, end, memory, [](float x, bool) { return x; });
    __syncthreads();
    for_rows(top, end, [&](int place, int matrix, int row, int col) {
      const float x = failed[matrix] == 0 ? memory[place] : __int_as_float(0x7fffffff);
      inverses[matrix * size + row * d + col] = x;
      inverses[matrix * size + col * d + row] = x;
    });
  });
  if (threadIdx.x < count) p.info[first + threadIdx.x] = failed[threadIdx.x];
}

}  // namespace mbf::cuda
