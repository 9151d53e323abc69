// Helpers of all kernels: element formats, sums over lanes, the segment of a thread block.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

#include "../core/bfloat16_inverse.h"
#include "parameters.h"

namespace mbf::cuda {

__device__ __forceinline__ float widen(float x) { return x; }
__device__ __forceinline__ float widen(__half x) { return __half2float(x); }
__device__ __forceinline__ float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class Stored>
__device__ __forceinline__ Stored narrow(float x) {
  if constexpr (sizeof(Stored) == 4) {
    return x;
  } else if constexpr (std::is_same_v<Stored, __half>) {
    return __float2half_rn(x);
  } else {
    return __float2bfloat16_rn(x);
  }
}

// Calls f with a null pointer to the element type of this format.
template <class F>
__device__ __forceinline__ void with_format(Format format, F f) {
  if (format == Format::Float32) {
    f(static_cast<float*>(nullptr));
  } else if (format == Format::BFloat16) {
    f(static_cast<__nv_bfloat16*>(nullptr));
  } else {
    f(static_cast<__half*>(nullptr));
  }
}

// The diagonal of an inverse must be below this to be stored.
__device__ __forceinline__ float inverse_limit(bool bfloat16) {
  return bfloat16 ? kBFloat16InverseLimit : __uint_as_float(0x7f800000u);
}

constexpr unsigned kWarp = 0xffffffffu;  // the mask of all lanes

__device__ __forceinline__ double finite_or_zero(float x) { return isfinite(x) ? x : 0.0; }

// The sum over each group of `Lanes` neighbouring lanes, returned to its first lane. The order of
// additions is always the same.
template <int Lanes>
__device__ __forceinline__ double sum_over_lanes(double x) {
  for (int half = Lanes / 2; half > 0; half /= 2) {
    x += __shfl_down_sync(kWarp, x, half, Lanes);
  }
  return x;
}

// The sum over a thread block, returned to all of its threads. The order is always the same.
template <int Threads>
__device__ __forceinline__ double sum_over_threads(double x) {
  __shared__ double sums[Threads / 32];
  x = sum_over_lanes<32>(x);
  __syncthreads();
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();
  double all = 0;
  for (int warp = 0; warp < Threads / 32; ++warp) all += sums[warp];
  return all;
}

template <class P>
__device__ __forceinline__ const typename P::Entry* entries(const P& p) {
  return reinterpret_cast<const typename P::Entry*>(p.pool);
}

template <class P>
__device__ __forceinline__ const typename P::Stride& strides_at(const P& p, uint8_t place) {
  using Stride = typename P::Stride;
  return reinterpret_cast<const Stride*>(p.pool + P::kPool)[-static_cast<int>(place)];
}

// Index of the entry that this thread block belongs to.
template <class P>
__device__ __forceinline__ uint32_t own_segment(const P& p) {
  const auto* list = entries(p);
  uint32_t low = 0;
  uint32_t high = p.count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (list[middle].first_unit <= blockIdx.x) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

}  // namespace mbf::cuda
