// Copies blocks between tensors in torch's layout and shared memory, a warp 32 blocks at a time.
//
// The elements of a block are contiguous, so lanes that each read their own block would use a few
// bytes of every sector. Instead lane l loads elements l, l + 32, ... of the warp's 32 blocks,
// which is coalesced, and shared memory regroups them by block. In channels_last tensors
// neighbouring blocks are contiguous instead, and each lane reads its own block.
#pragma once

#include "../core/macros.h"
#include "device.cuh"

namespace mbf::cuda {

// One of a segment's tensors, from the first block of a warp on.
struct NaturalView {
  void* data;
  Format format;
  const Strides* strides;  // null: contiguous
  int64_t block;
  int count;  // blocks, not counting padding
};

template <class P>
__device__ __forceinline__ NaturalView natural_view(const P& p, const void* data, Natural natural,
                                                    int64_t block, int count) {
  const Strides* strides = natural.place == kContiguous ? nullptr : &strides_at(p, natural.place);
  return {const_cast<void*>(data), natural.format, strides, block, count};
}

template <int D>
using WarpStage = float[32 * stage_stride(D)];

// Where the warp's stage has element i of its contiguous blocks.
template <int D>
__device__ __forceinline__ int stage_place(int i) {
  return D % 2 == 1 ? i : i + i / D;
}

// Offset of block `view.block + lane` of a strided tensor, in elements.
__device__ __forceinline__ int64_t strided_block(const NaturalView& view, int lane) {
  const int64_t block = view.block + lane;
  const Strides& s = *view.strides;
  const int64_t outer = block / s.inner;
  return outer * s.outer_stride + (block - outer * s.inner) * s.inner_stride;
}

// Offset of the first of the D elements this lane copies: every 32nd of the warp's contiguous
// blocks, or the lane's own block.
template <int D>
__device__ __forceinline__ int64_t first_element(const NaturalView& view, int lane) {
  return view.strides == nullptr ? view.block * D + lane : strided_block(view, lane);
}

// Loads the D elements this lane copies into registers, so that loads of several tensors can be in
// flight at once. Zeros past the last block.
template <int D>
__device__ __forceinline__ void fetch(const NaturalView& view, int lane, float (&x)[D]) {
  const int64_t first = first_element<D>(view, lane);
  with_format(view.format, [&](auto* type) {
    using Stored = std::remove_pointer_t<decltype(type)>;
    const Stored* from = static_cast<const Stored*>(view.data) + first;
    if (view.strides == nullptr) {
      MBF_UNROLL
      for (int j = 0; j < D; ++j) {
        x[j] = j * 32 + lane < view.count * D ? widen(from[j * 32]) : 0.0f;
      }
    } else {
      MBF_UNROLL
      for (int j = 0; j < D; ++j) {
        x[j] = lane < view.count ? widen(from[j * view.strides->element_stride]) : 0.0f;
      }
    }
  });
}

// Stores to shared memory what `fetch` has loaded.
template <int D>
__device__ __forceinline__ void put(const NaturalView& view, int lane, const float (&x)[D],
                                    WarpStage<D>& stage) {
  const bool runs = view.strides == nullptr;
  MBF_UNROLL
  for (int j = 0; j < D; ++j) {
    stage[runs ? stage_place<D>(j * 32 + lane) : lane * stage_stride(D) + j] = x[j];
  }
}

// Copies from shared memory to the tensor. A __syncwarp separates it from the writes to `stage`.
template <int D>
__device__ __forceinline__ void send(const NaturalView& view, int lane, const WarpStage<D>& stage) {
  const int64_t first = first_element<D>(view, lane);
  with_format(view.format, [&](auto* type) {
    using Stored = std::remove_pointer_t<decltype(type)>;
    Stored* to = static_cast<Stored*>(view.data) + first;
    if (view.strides == nullptr) {
      MBF_UNROLL
      for (int j = 0; j < D; ++j) {
        const int i = j * 32 + lane;
        if (i < view.count * D) to[j * 32] = narrow<Stored>(stage[stage_place<D>(i)]);
      }
    } else if (lane < view.count) {
      MBF_UNROLL
      for (int j = 0; j < D; ++j) {
        to[j * view.strides->element_stride] = narrow<Stored>(stage[lane * stage_stride(D) + j]);
      }
    }
  });
}

}  // namespace mbf::cuda
