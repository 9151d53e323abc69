// Dense matrices, one per thread: sizes up to kMaxThreadBlock.
#pragma once

#include "thread_kernels.cuh"

namespace mbf::cuda {

// Calls f(i, matrix, row, col) for the elements of the warp's matrices that this lane copies: every
// 32nd in memory order.
template <int D, class F>
__device__ __forceinline__ void for_own_elements(int count, int lane, F f) {
#pragma unroll 4
  for (int i = lane; i < count * D * D; i += 32) {
    const int matrix = i / (D * D);
    const int element = i - matrix * (D * D);
    const int row = element / D;
    f(i, matrix, row, element - row * D);
  }
}

// A warp loads and stores its matrices as one contiguous run; in between, their triangles are in
// shared memory.
template <int D>
__global__ void __launch_bounds__(kThreadBlockThreads, wanted_residents(D))
    invert_thread_matrices(const __grid_constant__ DenseParameters p) {
  constexpr int T = triangle_size(D);
  constexpr int kStride = stage_stride(T);
  __shared__ float stages[kWarps][32 * kStride];
  float* stage = stages[threadIdx.x / 32];
  const int lane = threadIdx.x % 32;
  const int64_t first = int64_t{blockIdx.x} * kThreadBlockThreads + threadIdx.x / 32 * 32;
  const int64_t left = p.count - first;
  if (left <= 0) return;
  const int count = left < 32 ? static_cast<int>(left) : 32;

  const float* matrices = p.matrices + first * (D * D);
  for_own_elements<D>(count, lane, [&](int i, int matrix, int row, int col) {
    if (col <= row) stage[matrix * kStride + triangle_index(row, col)] = matrices[i];
  });
  __syncwarp();
  int failed = 0;
  if (lane < count) {
    float* own = stage + lane * kStride;
    float a[T];
    MBF_UNROLL
    for (int i = 0; i < T; ++i) a[i] = own[i];
    failed = invert_block<D>(a, 1.0f, p.damping, inverse_limit(false));
    MBF_UNROLL
    for (int i = 0; i < T; ++i) own[i] = failed == 0 ? a[i] : __int_as_float(0x7fffffff);
    p.info[first + lane] = failed;
  }
  __syncwarp();
  float* inverses = p.inverses + first * (D * D);
  for_own_elements<D>(count, lane, [&](int i, int matrix, int row, int col) {
    inverses[i] = stage[matrix * kStride + symmetric_index(row, col)];
  });
}

}  // namespace mbf::cuda
