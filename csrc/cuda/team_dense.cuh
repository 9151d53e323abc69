// Dense matrices too large for one thread: 16 per thread block, each with a team of lanes.
#pragma once

#include "team_kernels.cuh"

namespace mbf::cuda {

template <int Kind>
__global__ void __launch_bounds__(kTeams[Kind].lanes* kTileBlocks)
    invert_team_matrices(const __grid_constant__ DenseParameters p) {
  using T = Team<kTeams[Kind].lanes, kTeams[Kind].patches>;
  extern __shared__ float4 aligned_memory[];
  __shared__ int failed[kTileBlocks];
  const int d = p.block_size;
  const int size = d * d;
  float* columns = reinterpret_cast<float*>(aligned_memory);
  float* rows = columns + 2 * TeamMemory(d).columns;
  const int64_t first = int64_t{blockIdx.x} * kTileBlocks;
  const int64_t left = p.count - first;
  const int count = left < kTileBlocks ? static_cast<int>(left) : kTileBlocks;
  const float* matrices = p.matrices + first * size;
  float* inverses = p.inverses + first * size;

  T team(d, columns);
  // Calls f(index in `rows`, matrix, row, col) for the lower triangles in rows 4 band ..
  // 4 band + 3. Neighbouring threads have neighbouring columns.
  const auto for_band = [&](int band, auto f) {
    const int top = band * kPatch;
    const int width = min(d, top + kPatch);
    const int elements = (width - top) * width;
    for (int i = threadIdx.x; i < kTileBlocks * elements; i += blockDim.x) {
      const int matrix = i / elements;
      const int row = top + i % elements / width;
      const int col = i % width;
      if (col > row) continue;
      f((triangle_index(row, col) - triangle_size(top)) * kRowStride + matrix, matrix, row, col);
    }
  };
  for (int band = 0; band < team.bands(); ++band) {
    __syncthreads();
    for_band(band, [&](int place, int matrix, int row, int col) {
      rows[place] = matrix < count ? matrices[matrix * size + row * d + col] : 0.0f;
    });
    __syncthreads();
    team.take(band, rows, 1.0f, p.damping);
  }
  const int pivot = team.invert(inverse_limit(false));
  if (team.leads()) failed[team.block()] = pivot;
  for (int band = 0; band < team.bands(); ++band) {
    __syncthreads();
    team.give(band, rows);
    __syncthreads();
    for_band(band, [&](int place, int matrix, int row, int col) {
      if (matrix >= count) return;
      const float x = failed[matrix] == 0 ? rows[place] : __int_as_float(0x7fffffff);
      inverses[matrix * size + row * d + col] = x;
      inverses[matrix * size + col * d + row] = x;
    });
  }
  if (threadIdx.x < count) p.info[first + threadIdx.x] = failed[threadIdx.x];
}

}  // namespace mbf::cuda
