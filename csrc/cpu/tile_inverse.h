// Inverses of the 16 blocks of a tile, and of dense matrices 16 at a time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <memory>

#include "../core/bfloat16_inverse.h"
#include "../core/spd_inverse.h"
#include "element_formats.h"
#include "lanes.h"
#include "streaming.h"
#include "tile_pass.h"
#include "transpose.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

// How many tiles ahead of the inverse its G is prefetched. Only the inverse has enough arithmetic
// per byte to gain from it. Update and step run at the speed of the hardware's own prefetching,
// which software prefetches only disturb.
constexpr int kPrefetchTiles = 2;

// Room for the triangles of a tile twice: as lane vectors, one group of lanes after the other, and
// in the order of a stored tile. Rolled loops use memory of the thread, because float64 at the
// largest size needs 530 KB; every `Use` has its own. It is allocated when a thread first needs it:
// as static memory, all of it would be part of every thread that calls the extension.
template <class V, class Dim, class Use = void>
struct TileWorkspace {
  using T = typename V::Scalar;
  struct Memory {
    alignas(64) T triangle[kTileBlocks * triangle_size(kMaxBlock)];
    alignas(64) T staged[kTileBlocks * triangle_size(kMaxBlock)];
  };
  static MBF_INLINE Memory& memory() {
    static thread_local std::unique_ptr<Memory> of_this_thread(new Memory);
    return *of_this_thread;
  }

  V* triangle = reinterpret_cast<V*>(memory().triangle);
  T* staged = memory().staged;
};

// Expanded loops use the stack.
template <class V, int D, class Use>
struct TileWorkspace<V, Const<D>, Use> {
  alignas(64) V triangle[kTileBlocks / V::kLanes * triangle_size(D)];
  alignas(64) typename V::Scalar staged[kTileBlocks * triangle_size(D)];
};

template <class V>
class TileInverse {
 public:
  using T = typename V::Scalar;
  static constexpr int N = V::kLanes;
  static constexpr int W = kTileBlocks;

  // Computes P and info of one tile from its G; the first `valid` blocks are not padding. Out of
  // line, so that the expanded code exists once per size.
  template <class Dim>
  static __attribute__((noinline)) void tile(const TilePass& pass, int64_t index, int valid,
                                             double damping, Dim d) {
    const TileJob& job = pass.job;
    const int64_t start = index * triangle_size(d) * W;
    const T* stats = static_cast<const T*>(job.stats) + start;
    int32_t* info = job.info + index * W;

    TileWorkspace<V, Dim> workspace;
    const bool short_format = job.inverse_format == Format::BFloat16;
    const T limit = short_format ? T(kBFloat16InverseLimit) : std::numeric_limits<T>::infinity();
    const double weight = job.debias ? job.tallies[index].weight : 1.0;
    const double scale = weight > 0 ? 1.0 / weight : 1.0;  // with weight 0, G is zero
    const bool all = invert(stats, workspace.triangle, info, scale, damping, limit, d);
    const bool clean = all && valid == W;
    if (short_format) {
      if constexpr (sizeof(T) == 4) {
        store(workspace, static_cast<BFloat16*>(job.inverse) + start, pass, info, valid, clean, d);
      }
    } else {
      store(workspace, static_cast<T*>(job.inverse) + start, pass, info, valid, clean, d);
    }
  }

  // Inverts dense matrices 16 * first .. 16 * last - 1. Every 16 of them are transposed into a
  // tile, inverted as such, and transposed back.
  template <class Dim>
  static void dense(const DenseJob& job, int64_t first, int64_t last, Dim d) {
    const int64_t size = static_cast<int64_t>(d) * d;
    TileWorkspace<V, Dim, struct ForDense> workspace;
    T* stats = reinterpret_cast<T*>(&workspace.triangle[0]);
    T* result = &workspace.staged[0];
    int32_t info[W];
    TilePass pass;
    pass.job.stats = stats;
    pass.job.inverse = result;
    pass.job.inverse_format = sizeof(T) == 4 ? Format::Float32 : Format::Float64;
    pass.job.info = info;
    for (int64_t group = first; group < last; ++group) {
      const int64_t start = group * W;
      const int valid = static_cast<int>(std::min<int64_t>(W, job.count - start));
      read_dense(static_cast<const T*>(job.matrices) + start * size, stats, valid, d);
      tile(pass, 0, valid, job.damping, d);
      T* inverses = static_cast<T*>(job.inverses) + start * size;
      write_dense(result, inverses, valid, d);
      for (int l = 0; l < valid; ++l) {
        job.info[start + l] = info[l];
        if (info[l] != 0) std::fill_n(inverses + l * size, size, static_cast<T>(NAN));
      }
    }
  }

 private:
  // Computes (scale * G + damping I)^-1 of a whole tile; true if every block has one. Inlined where
  // the workspace is, so that the compiler knows that nothing aliases it: saves some 15 % at d = 9.
  template <class Dim>
  static MBF_INLINE bool invert(const T* stats, V* triangle, int32_t* info, double scale,
                                double damping, T limit, Dim d) {
    const int elements = triangle_size(d);
    const V scale_lanes = broadcast<V>(scale);
    const V damping_lanes = broadcast<V>(damping);
    const V limit_lanes = broadcast<V>(limit);
    V reciprocal[kMaxBlock];
    V panel[kPanelWidth * kMaxBlock];
    std::fill_n(info, W, 0);
    bool all = true;
    for (int h = 0; h < W; h += N) {
      const InverseWorkspace<V> w{triangle + h / N * elements, reciprocal, panel};
      spd_inverse(
          w,
          [&](int row, int col) MBF_INLINE_LAMBDA {
            const T* source = stats + triangle_index(row, col) * W + h;
            if (h == 0) prefetch(source + kPrefetchTiles * elements * W);
            const V x = V::load(source) * scale_lanes;
            return row == col ? x + damping_lanes : x;
          },
          d);
      if (!all_lanes(usable(w, limit_lanes, d))) {
        all = report_failures(w, info + h, limit, d) && all;
      }
    }
    return all;
  }

  // Off the fast path: stores the failed pivot of each lane in `info`. True if none has failed.
  static __attribute__((noinline)) bool report_failures(InverseWorkspace<V> w, int32_t* info,
                                                        T limit, int d) {
    const T* reciprocal = reinterpret_cast<const T*>(w.reciprocal);
    const T* triangle = reinterpret_cast<const T*>(w.triangle);
    bool none = true;
    for (int l = 0; l < N; ++l) {
      info[l] =
          failed_pivot([&](int j) { return reciprocal[j * N + l]; },
                       [&](int j) { return triangle[triangle_index(j, j) * N + l]; }, limit, d);
      none = none && info[l] == 0;
    }
    return none;
  }

  template <class Stored, class Dim>
  static MBF_INLINE void store(TileWorkspace<V, Dim>& workspace, Stored* inverse,
                               const TilePass& pass, int32_t* info, int valid, bool clean, Dim d) {
    if (!clean) return store_succeeded(&workspace.triangle[0], inverse, info, valid, d);
    const int elements = triangle_size(d);
    const V* triangle = &workspace.triangle[0];
    if constexpr (std::is_same_v<Stored, BFloat16>) {
      for (int g = 0; g < W / N; ++g) {
        for_each_rounded(
            triangle + g * elements,
            [&](int i, V x) MBF_INLINE_LAMBDA { store_lanes(x, inverse + i * W + g * N); }, d);
      }
    } else if (!pass.stream_inverse) {
      for (int i = 0; i < elements; ++i) {
        for (int g = 0; g < W / N; ++g) {
          store_lanes(triangle[g * elements + i], inverse + i * W + g * N);
        }
      }
    } else {
      // All groups of lanes of a cache line together: a streaming store of half a line is slow.
      for (int i = 0; i < elements; ++i) {
        for (int g = 0; g < W / N; ++g) {
          stream_lanes(triangle[g * elements + i], inverse + i * W + g * N);
        }
      }
    }
  }

  // Calls store(i, x) for the elements of one group of lanes, rounded to bfloat16.
  template <class Store, class Dim>
  static MBF_INLINE void for_each_rounded(const V* triangle, Store store, Dim d) {
    V scales[kMaxBlock];
    for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
      scales[row] = reciprocal_scale(triangle[triangle_index(row, row)]);
    });
    round_inverse<V>([&](int i) MBF_INLINE_LAMBDA { return triangle[i]; },
                     [&](int row) MBF_INLINE_LAMBDA { return scales[row]; }, store, d);
  }

  // Off the fast path: stores only blocks that have an inverse. A failed block keeps its last
  // inverse, a padding block its zeros.
  template <class Stored>
  static __attribute__((noinline)) void store_succeeded(V* triangle, Stored* inverse, int32_t* info,
                                                        int valid, int d) {
    const int elements = triangle_size(d);
    for (int l = valid; l < W; ++l) info[l] = 0;
    if constexpr (std::is_same_v<Stored, BFloat16>) {
      for (int g = 0; g < W / N; ++g) {
        V* group = triangle + g * elements;
        for_each_rounded(group, [&](int i, V x) MBF_INLINE_LAMBDA { group[i] = x; }, d);
      }
    }
    for (int i = 0; i < elements; ++i) {
      Stored fresh[W];
      for (int g = 0; g < W / N; ++g) store_lanes(triangle[g * elements + i], fresh + g * N);
      for (int l = 0; l < valid; ++l) {
        if (info[l] == 0) inverse[i * W + l] = fresh[l];
      }
    }
  }

  // Loads the lower triangles of `valid` dense matrices into a tile; missing matrices are zero.
  template <class Dim>
  static MBF_INLINE void read_dense(const T* matrices, T* tile, int valid, Dim d) {
    const int64_t size = static_cast<int64_t>(d) * d;
    for (int h = 0; h < W; h += N) {
      const T* group = matrices + h * size;
      if (h + N <= valid) {
        for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
          V columns[kMaxBlock];
          load_transposed<V>(group + row * d, size, row + Const<1>{}, columns);
          T* out = tile + triangle_index(row, 0) * W + h;
          for_each(zero_like(d), row + Const<1>{},
                   [&](auto c) MBF_INLINE_LAMBDA { columns[c].store(out + c * W); });
        });
        continue;
      }
      for (int row = 0; row < d; ++row) {
        for (int col = 0; col <= row; ++col) {
          T* out = tile + triangle_index(row, col) * W + h;
          for (int l = 0; l < N; ++l) {
            out[l] = h + l < valid ? group[l * size + row * d + col] : T(0);
          }
        }
      }
    }
  }

  // Stores the first `valid` blocks of a tile as dense matrices, with both triangles.
  template <class Dim>
  static MBF_INLINE void write_dense(const T* tile, T* inverses, int valid, Dim d) {
    const int64_t size = static_cast<int64_t>(d) * d;
    for (int h = 0; h < valid; h += N) {
      T* group = inverses + h * size;
      if (h + N <= valid) {
        for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
          store_transposed<V>(group + row * d, size, d, [&](int col) MBF_INLINE_LAMBDA {
            const int i = col <= row ? triangle_index(row, col) : triangle_index(col, row);
            return V::load(tile + i * W + h);
          });
        });
        continue;
      }
      for (int row = 0; row < d; ++row) {
        for (int col = 0; col < d; ++col) {
          const int i = col <= row ? triangle_index(row, col) : triangle_index(col, row);
          for (int l = h; l < valid; ++l) group[(l - h) * size + row * d + col] = tile[i * W + l];
        }
      }
    }
  }
};

}  // namespace
}  // namespace mbf
