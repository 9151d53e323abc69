// One vector of each of a tile's 16 blocks in shared memory, and walks over natural tensors.
#pragma once

#include "live_step.cuh"
#include "natural.cuh"

namespace mbf::cuda {

// The tile that some threads work on.
struct TilePlace {
  int d;
  int64_t tile;
  int64_t block;    // in the tensor
  int count;        // blocks, not counting padding; 0 if there is no such tile
  uint32_t over_d;  // see RunHeader

  // Where the stage has element i of the tile's contiguous blocks.
  __device__ __forceinline__ int stage_place(int i) const {
    return i + static_cast<int>(__umulhi(i, over_d)) * (tile_stride(d) - d);
  }
};

__device__ __forceinline__ TilePlace tile_place(const RunHeader& job, const Segment& segment,
                                                uint32_t tile) {
  const int64_t left = static_cast<int64_t>(segment.blocks) - int64_t{tile} * kTileBlocks;
  return {job.block_size, segment.tile + tile, segment.block + int64_t{tile} * kTileBlocks,
          left < 0             ? 0
          : left > kTileBlocks ? kTileBlocks
                               : static_cast<int>(left),
          job.over_block_size};
}

// The threads that share a tile: this one's index, and how many there are, a multiple of 32.
struct TileThreads {
  int index, count;
};

enum class Access { Read, Write, Update };

// Four elements in memory, which one instruction loads or stores.
template <class Stored>
struct alignas(4 * sizeof(Stored)) Quad {
  Stored x[4];
};

// Calls f(element, place in the stage) for all elements of a tile of a natural tensor. Where the
// tensor is written, f returns the new element. Neighbouring threads access neighbouring memory.
template <Access access, class F>
__device__ __forceinline__ void for_natural(const NaturalView& view, const TilePlace& at,
                                            TileThreads threads, F f) {
  with_format(view.format, [&](auto* type) {
    using Stored = std::remove_pointer_t<decltype(type)>;
    const auto visit = [&](Stored& x, int place) {
      if constexpr (access == Access::Read) {
        f(widen(x), place);
      } else {
        x = narrow<Stored>(f(access == Access::Write ? 0.0f : widen(x), place));
      }
    };
    if (view.strides == nullptr) {
      Stored* run = static_cast<Stored*>(view.data) + view.block * at.d;
      const int elements = view.count * at.d;
      int alone = 0;  // the first element that is not in a quad
      if (reinterpret_cast<uintptr_t>(run) % sizeof(Quad<Stored>) == 0) {
        alone = elements / 4 * 4;
        auto* quads = reinterpret_cast<Quad<Stored>*>(run);
        constexpr int kAtOnce = 4;  // loads in flight
#pragma unroll 1
        for (int first = threads.index; 4 * first < alone; first += kAtOnce * threads.count) {
          Quad<Stored> quad[kAtOnce];
          if constexpr (access != Access::Write) {
            MBF_UNROLL
            for (int q = 0; q < kAtOnce; ++q) {
              const int i = first + q * threads.count;
              if (4 * i < alone) quad[q] = quads[i];
            }
          }
          MBF_UNROLL
          for (int q = 0; q < kAtOnce; ++q) {
            const int i = first + q * threads.count;
            if (4 * i >= alone) continue;
            MBF_UNROLL
            for (int e = 0; e < 4; ++e) visit(quad[q].x[e], at.stage_place(4 * i + e));
            if constexpr (access != Access::Read) quads[i] = quad[q];
          }
        }
      }
#pragma unroll 1
      for (int i = alone + threads.index; i < elements; i += threads.count) {
        visit(run[i], at.stage_place(i));
      }
    } else {
      const int block = threads.index % kTileBlocks;
      if (block >= view.count) return;
      const int step = threads.count / kTileBlocks;
      const int64_t element_stride = view.strides->element_stride;
      int e = threads.index / kTileBlocks;
      Stored* own = static_cast<Stored*>(view.data) + strided_block(view, block);
      own += e * element_stride;
#pragma unroll 4
      for (; e < at.d; e += step, own += step * element_stride) {
        visit(*own, block * tile_stride(at.d) + e);
      }
    }
  });
}

// Loads D of a tile. What belongs to no element becomes zero.
__device__ __forceinline__ void load_grads(const RunParameters& p, const Segment& segment,
                                           const TilePlace& at, TileThreads threads, float* stage) {
  const int stride = tile_stride(at.d);
#pragma unroll 1
  for (int e = at.d + threads.index / kTileBlocks; e < stride; e += threads.count / kTileBlocks) {
    stage[threads.index % kTileBlocks * stride + e] = 0;
  }
#pragma unroll 1
  for (int i = at.count * stride + threads.index; i < kTileBlocks * stride; i += threads.count) {
    stage[i] = 0;
  }
  const NaturalView view = natural_view(p, segment.grads, segment.natural[1], at.block, at.count);
  for_natural<Access::Read>(view, at, threads, [&](float x, int place) { stage[place] = x; });
}

}  // namespace mbf::cuda
