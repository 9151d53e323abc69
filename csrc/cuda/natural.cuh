// Between tensors as torch keeps them and blocks in shared memory, one warp and 32 blocks at a
// time.
//
// A block's numbers are neighbours in memory, so a thread that read its own block would use a few
// bytes of every sector. Instead lane l takes numbers l, l + 32, ... of the warp's run, and shared
// memory turns them into blocks. Where the blocks themselves are neighbours (channels_last), each
// thread goes to its own.
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
  int count;  // blocks that exist, of 32
};

template <class P>
__device__ __forceinline__ NaturalView natural_view(const P& p, const void* data, Natural natural,
                                                    int64_t block, int count) {
  const Strides* strides = natural.place == kContiguous ? nullptr : &strides_at(p, natural.place);
  return {const_cast<void*>(data), natural.format, strides, block, count};
}

template <int D>
using WarpStage = float[32 * stage_stride(D)];

template <int D>
__device__ __forceinline__ int stage_place(int number) {
  return D % 2 == 1 ? number : number + number / D;
}

// Where block `view.block + lane` of a strided tensor begins, in numbers.
__device__ __forceinline__ int64_t strided_block(const NaturalView& view, int lane) {
  const int64_t block = view.block + lane;
  const Strides& s = *view.strides;
  const int64_t outer = block / s.inner;
  return outer * s.outer_stride + (block - outer * s.inner) * s.inner_stride;
}

// The first of the D numbers this lane carries: the others are every 32nd of the warp's run, or the
// rest of the lane's own block.
template <int D>
__device__ __forceinline__ int64_t first_number(const NaturalView& view, int lane) {
  return view.strides == nullptr ? view.block * D + lane : strided_block(view, lane);
}

// The D numbers this lane carries to shared memory: loads only, so that several tensors can be
// under way at once. Zeros past the last block.
template <int D>
__device__ __forceinline__ void fetch(const NaturalView& view, int lane, float (&x)[D]) {
  const int64_t first = first_number<D>(view, lane);
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

template <int D>
__device__ __forceinline__ void put(const NaturalView& view, int lane, const float (&x)[D],
                                    WarpStage<D>& stage) {
  const bool runs = view.strides == nullptr;
  MBF_UNROLL
  for (int j = 0; j < D; ++j) {
    stage[runs ? stage_place<D>(j * 32 + lane) : lane * stage_stride(D) + j] = x[j];
  }
}

// The other way: all lanes have written their blocks to `stage`, and the warp has met since.
template <int D>
__device__ __forceinline__ void send(const NaturalView& view, int lane, const WarpStage<D>& stage) {
  const int64_t first = first_number<D>(view, lane);
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
