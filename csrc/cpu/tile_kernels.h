// The CPU kernels: core mathematics on SIMD lanes, tile by tile.
//
// Included by one translation unit per instruction set, each of which instantiates make_kernels for
// its own lane types. Everything is in an unnamed namespace on purpose: two units must never share
// an inline function, or the linker may keep the copy with instructions the machine lacks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/rank_one_ema.h"
#include "../core/spd_inverse.h"
#include "../core/symmetric_product.h"
#include "job.h"
#include "lanes.h"
#include "natural_memory.h"
#include "number_formats.h"
#include "transpose.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace mbf {
namespace {

constexpr int kMaxTriangle = triangle_size(kMaxBlock);

// float32 blocks up to this size run with every loop expanded. Beyond it the rolled loops are as
// fast (docs/cpu.md has the measurement). float64 is always rolled: it is for checking, not for speed.
constexpr int kMaxExpanded = 10;

// Natural numbers moved per round of a pass: small enough that gradients, momenta and parameters
// stay in the first-level cache between the rounds' phases, large enough that a store has left the
// store buffer before the transpose reads it again.
constexpr int kRoundNumbers = 512;
constexpr int kMaxRound = kTileBlocks * kMaxBlock;
static_assert(kRoundNumbers <= kMaxRound);

MBF_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Lines the caller will want soon; `bytes` is rounded up.
MBF_INLINE void prefetch_range(const void* p, int64_t bytes) {
  const char* c = static_cast<const char*>(p);
  for (int64_t i = 0; i < bytes; i += 64) prefetch(c + i);
}

template <class T>
MBF_INLINE void stream_line(const T* from, T* to) {
#if defined(__AVX__)
  for (int i = 0; i < 64; i += 32) {
    const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(reinterpret_cast<const char*>(from) + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(reinterpret_cast<char*>(to) + i), x);
  }
#elif defined(__SSE2__)
  for (int i = 0; i < 64; i += 16) {
    const __m128i x = _mm_load_si128(reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(from) + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(reinterpret_cast<char*>(to) + i), x);
  }
#else
  std::memcpy(to, from, 64);
#endif
}

MBF_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

template <class V>
struct TriangleSlot {
  typename V::Scalar* p;
  MBF_INLINE V load() const { return V::load(p); }
  MBF_INLINE void store(V x) const { x.store(p); }
};

// Scratch of one thread. Static rather than on the stack: the largest block in float64 needs 270 KB.
template <class T>
struct Scratch {
  alignas(64) T triangle[kMaxTriangle * kTileBlocks];
  alignas(64) T tile[kMaxTriangle * kTileBlocks];
  alignas(64) T reciprocal[kMaxBlock * kTileBlocks];
  alignas(64) T panel[kTile * kMaxBlock * kTileBlocks];
};

template <class V>
class TileKernels {
 public:
  using T = typename V::Scalar;
  static constexpr int N = V::kLanes;
  static constexpr int W = kTileBlocks;
  static_assert(W % N == 0);

  // G of one tile from the gradients of its 16 blocks.
  template <class Dim>
  static MBF_INLINE void update_tile(T* stats, const T* grads, V beta, V one_minus_beta, Dim d) {
    for (int h = 0; h < W; h += N) {
      V v[kMaxBlock];
      load_transposed<V>(grads + h * d, d, d, v);
      rank_one_ema(
          [&](int i) MBF_INLINE_LAMBDA { return TriangleSlot<V>{stats + i * W + h}; }, v, beta,
          one_minus_beta, d);
    }
  }

  // P M of one tile from the momenta of its 16 blocks, in natural order.
  template <class Stored, class Dim>
  static MBF_INLINE void precondition_tile(const Stored* inverse, const T* momenta, T* out, Dim d) {
    for (int h = 0; h < W; h += N) {
      V m[kMaxBlock];
      V u[kMaxBlock];
      load_transposed<V>(momenta + h * d, d, d, m);
      symmetric_product(
          [&](int i) MBF_INLINE_LAMBDA { return load_lanes<V>(inverse + i * W + h); }, m, u, d);
      store_transposed<V>(out + h * d, d, d, [&](int c) MBF_INLINE_LAMBDA { return u[c]; });
    }
  }

  // P and info of one tile from its G.
  template <class Stored, class Dim>
  static MBF_INLINE void invert_tile(const TileJob& job, int64_t tile, int valid, T scale, T damping,
                                     Dim d) {
    const int numbers = triangle_size(d);
    const T* stats = static_cast<const T*>(job.stats) + tile * numbers * W;
    Stored* inverse = static_cast<Stored*>(job.inverse) + tile * numbers * W;
    int32_t* info = job.info + tile * W;
    const V scale_lanes = broadcast<V>(scale);
    const V damping_lanes = broadcast<V>(damping);

    Scratch<T>& scratch = this_threads_scratch();
    bool clean = valid == W;
    for (int h = 0; h < W; h += N) {
      V* triangle = reinterpret_cast<V*>(scratch.triangle) + h / N * numbers;
      const InverseWorkspace<V> w = workspace(scratch, triangle);
      const T* source = stats + h;
      spd_inverse(
          w,
          [&](int row, int col) MBF_INLINE_LAMBDA {
            const V x = V::load(source + triangle_index(row, col) * W) * scale_lanes;
            return row == col ? x + damping_lanes : x;
          },
          d);
      const bool usable_here = all_lanes(usable(w, d));
      for (int l = 0; l < N; ++l) info[h + l] = 0;
      if (!usable_here) {
        clean = false;
        report_failures(w, info + h, d);
      }
    }

    // Both halves of a cache line are written together: a streaming store of half a line is slow.
    const V* result = reinterpret_cast<const V*>(scratch.triangle);
    if (clean && !job.stream_inverse) {
      for (int i = 0; i < numbers; ++i) {
        for (int h = 0; h < W / N; ++h) store_lanes(result[h * numbers + i], inverse + i * W + h * N);
      }
    } else if (clean) {
      Stored* staged = reinterpret_cast<Stored*>(scratch.tile);
      constexpr int kLine = 64 / sizeof(Stored);
      for (int i = 0; i < numbers; ++i) {
        for (int h = 0; h < W / N; ++h) store_lanes(result[h * numbers + i], staged + i * W + h * N);
      }
      // Tiles start on a cache line but a bfloat16 tile may end in half of one.
      int i = 0;
      for (; i + kLine <= numbers * W; i += kLine) stream_line(staged + i, inverse + i);
      std::memcpy(inverse + i, staged + i, (numbers * W - i) * sizeof(Stored));
    } else {
      // A failed block keeps its last inverse, a padding block its zeros.
      for (int l = valid; l < W; ++l) info[l] = 0;
      for (int i = 0; i < numbers; ++i) {
        Stored fresh[W];
        for (int h = 0; h < W / N; ++h) store_lanes(result[h * numbers + i], fresh + h * N);
        for (int l = 0; l < valid; ++l) {
          if (info[l] == 0) inverse[i * W + l] = fresh[l];
        }
      }
    }
  }

  template <class Dim>
  static void run(const TileJob& job, int64_t first, int64_t last, Dim d) {
    if (job.inverse_format == Format::BFloat16) {
      if constexpr (sizeof(T) == 4) run_stored<BFloat16>(job, first, last, d);
    } else {
      run_stored<T>(job, first, last, d);
    }
    if (job.stream_inverse) stream_fence();
  }

  template <class Stored, class Dim>
  static void run_stored(const TileJob& job, int64_t first, int64_t last, Dim d) {
    const int64_t round_tiles = std::max<int64_t>(1, kRoundNumbers / (W * d));
    int64_t tensor = std::upper_bound(job.tile_start, job.tile_start + job.tensors + 1, first) -
                     job.tile_start - 1;
    for (int64_t tile = first; tile < last; ++tensor) {
      const int64_t tensor_end = std::min(last, job.tile_start[tensor + 1]);
      while (tile < tensor_end) {
        const int64_t round_end = std::min(tile + round_tiles, tensor_end);
        run_round<Stored>(job, tensor, tile, round_end, d);
        tile = round_end;
      }
    }
  }

  // A few tiles of one tensor through all that is asked for, while they are in cache.
  template <class Stored, class Dim>
  static MBF_INLINE void run_round(const TileJob& job, int64_t tensor, int64_t tile,
                                   int64_t round_end, Dim d) {
    const int numbers = triangle_size(d);
    const int64_t block = (tile - job.tile_start[tensor]) * W;
    const int64_t padded = (round_end - tile) * W;
    const int64_t count = std::min(padded, job.blocks[tensor] - block);
    T* stats = static_cast<T*>(job.stats);
    const Stored* inverse = static_cast<const Stored*>(job.inverse);

    alignas(64) T grad_buffer[kMaxRound];
    const T* grads = nullptr;
    if (job.update || job.step) {
      grads = natural_blocks<T>(job.grads[tensor], d, block, count, padded, grad_buffer);
    }
    if (job.update) {
      const V beta = broadcast<V>(job.beta);
      const V one_minus_beta = broadcast<V>(1.0 - job.beta);
      for (int64_t t = tile; t < round_end; ++t) {
        T* tile_stats = stats + t * numbers * W;
        prefetch_range(tile_stats + kPrefetchTiles * numbers * W, numbers * W * sizeof(T));
        update_tile(tile_stats, grads + (t - tile) * W * d, beta, one_minus_beta, d);
      }
    }
    if (job.invert) {
      const T scale = static_cast<T>(1.0 / job.correction);
      const T damping = static_cast<T>(job.damping[tensor]);
      for (int64_t t = tile; t < round_end; ++t) {
        const int64_t valid = std::min<int64_t>(W, count - (t - tile) * W);
        if (!job.update) prefetch_range(stats + (t + kPrefetchTiles) * numbers * W, numbers * W * sizeof(T));
        invert_tile<Stored>(job, t, static_cast<int>(valid), scale, damping, d);
      }
    }
    if (job.step) {
      alignas(64) T momentum_buffer[kMaxRound];
      alignas(64) T direction_buffer[kMaxRound];
      T* momenta = natural_blocks<T>(job.momenta[tensor], d, block, count, padded, momentum_buffer);
      const int64_t padded_numbers = padded * d;
      const T mu = static_cast<T>(job.momentum);
      for (int64_t i = 0; i < padded_numbers; ++i) momenta[i] = mu * momenta[i] + grads[i];
      write_back<T>(job.momenta[tensor], d, block, count, momenta, momentum_buffer);

      T* direction = job.directions ? static_cast<T*>(job.directions) + tile * W * d : direction_buffer;
      for (int64_t t = tile; t < round_end; ++t) {
        const int64_t offset = (t - tile) * W * d;
        const Stored* tile_inverse = inverse + t * numbers * W;
        prefetch_range(tile_inverse + kPrefetchTiles * numbers * W, numbers * W * sizeof(Stored));
        precondition_tile(tile_inverse, momenta + offset, direction + offset, d);
        if (job.directions) job.squared_norms[t] = squared_norm(direction + offset, W * d);
      }
      if (!job.directions) move(job, tensor, block, count, direction, T(1), d);
    }
  }

  // W <- W - lr (scale * direction + weight_decay W) for `count` blocks.
  template <class Dim>
  static MBF_INLINE void move(const TileJob& job, int64_t tensor, int64_t block, int64_t count,
                              const T* direction, T scale, Dim d) {
    alignas(64) T param_buffer[kMaxRound];
    const BlockView& view = job.params[tensor];
    T* params = natural_blocks<T>(view, d, block, count, count, param_buffer);
    const T keep = static_cast<T>(1.0 - job.lr * job.weight_decay);
    const T rate = static_cast<T>(job.lr) * scale;
    for (int64_t i = 0; i < count * d; ++i) params[i] = keep * params[i] - rate * direction[i];
    write_back<T>(view, d, block, count, params, param_buffer);
  }

  static void apply(const TileJob& job, int64_t first, int64_t last) {
    const int d = job.block_size;
    int64_t tensor = std::upper_bound(job.tile_start, job.tile_start + job.tensors + 1, first) -
                     job.tile_start - 1;
    for (int64_t tile = first; tile < last; ++tile) {
      while (tile >= job.tile_start[tensor + 1]) ++tensor;
      const int64_t block = (tile - job.tile_start[tensor]) * W;
      const int64_t count = std::min<int64_t>(W, job.blocks[tensor] - block);
      const T* direction = static_cast<const T*>(job.directions) + tile * W * d;
      move(job, tensor, block, count, direction, static_cast<T>(job.scale[tensor]), d);
    }
  }

  // Sixteen dense matrices at a time, straight from and to their rows.
  template <class Dim>
  static void invert_dense(const DenseJob& job, int64_t first, int64_t last, Dim d) {
    const int64_t size = static_cast<int64_t>(d) * d;
    Scratch<T>& scratch = this_threads_scratch();
    const V damping = broadcast<V>(job.damping);
    for (int64_t group = first; group < last; ++group) {
      for (int h = 0; h < W; h += N) {
        const int64_t start = group * W + h;
        const int valid = static_cast<int>(std::clamp<int64_t>(job.count - start, 0, N));
        if (valid == 0) break;
        const T* matrices = static_cast<const T*>(job.matrices) + start * size;
        T* inverses = static_cast<T*>(job.inverses) + start * size;
        V* triangle = reinterpret_cast<V*>(scratch.triangle);
        // Rows of a run shorter than a register piece are read with what follows them, which is
        // still the same matrix unless the matrix itself is that small.
        const bool whole = valid == N;
        for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
          V* out = triangle + triangle_index(row, 0);
          if (whole) {
            load_transposed<V>(matrices + row * d, size, row + Const<1>{}, out);
          } else {
            for (int c = 0; c <= row; ++c) {
              T column[N] = {};
              for (int l = 0; l < valid; ++l) column[l] = matrices[l * size + row * d + c];
              out[c] = V::load(column);
            }
          }
          out[row] = out[row] + damping;
        });
        const InverseWorkspace<V> w = workspace(scratch, triangle);
        spd_inverse(
            w, [&](int row, int col) MBF_INLINE_LAMBDA { return triangle[triangle_index(row, col)]; }, d);
        int32_t info[N] = {};
        if (!all_lanes(usable(w, d))) report_failures(w, info, d);
        if (whole) {
          for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
            store_transposed<V>(inverses + row * d, size, d, [&](int c) MBF_INLINE_LAMBDA {
              return triangle[c <= row ? triangle_index(row, c) : triangle_index(c, row)];
            });
          });
        } else {
          const T* lanes = scratch.triangle;
          for (int row = 0; row < d; ++row) {
            for (int c = 0; c < d; ++c) {
              const int i = c <= row ? triangle_index(row, c) : triangle_index(c, row);
              for (int l = 0; l < valid; ++l) inverses[l * size + row * d + c] = lanes[i * N + l];
            }
          }
        }
        for (int l = 0; l < valid; ++l) {
          job.info[start + l] = info[l];
          if (info[l] != 0) std::fill_n(inverses + l * size, size, static_cast<T>(NAN));
        }
      }
    }
  }

 private:
  // How far ahead of the arithmetic G and P are fetched, in tiles.
  static constexpr int kPrefetchTiles = 2;

  static MBF_INLINE Scratch<T>& this_threads_scratch() {
    static thread_local Scratch<T> scratch;
    return scratch;
  }

  static MBF_INLINE InverseWorkspace<V> workspace(Scratch<T>& scratch, V* triangle) {
    return {triangle, reinterpret_cast<V*>(scratch.reciprocal), reinterpret_cast<V*>(scratch.panel)};
  }

  // Off the fast path: the failing pivot of each lane.
  static __attribute__((noinline)) void report_failures(InverseWorkspace<V> w, int32_t* info, int d) {
    const T* reciprocal = reinterpret_cast<const T*>(w.reciprocal);
    const T* triangle = reinterpret_cast<const T*>(w.triangle);
    for (int l = 0; l < N; ++l) {
      info[l] = failed_pivot([&](int j) { return reciprocal[j * N + l]; },
                             [&](int j) { return triangle[triangle_index(j, j) * N + l]; }, d);
    }
  }

  // In double and in a fixed order: the same for any number of threads.
  static double squared_norm(const T* x, int count) {
    double sum = 0;
    for (int i = 0; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
    return sum;
  }
};

// f(Const<d>) for sizes that run expanded, f(d) for the rest.
template <class T, int D = 1, class F>
MBF_INLINE void with_block_size(int d, F f) {
  if constexpr (D > (sizeof(T) == 4 ? kMaxExpanded : 0)) {
    f(d);
  } else {
    if (d == D) {
      f(Const<D>{});
    } else {
      with_block_size<T, D + 1>(d, f);
    }
  }
}

template <class V>
Kernels make_kernels() {
  return {
      [](const TileJob& job, int64_t first, int64_t last) {
        with_block_size<typename V::Scalar>(job.block_size, [&](auto d) { TileKernels<V>::run(job, first, last, d); });
      },
      [](const TileJob& job, int64_t first, int64_t last) {
        TileKernels<V>::apply(job, first, last);
      },
      [](const DenseJob& job, int64_t first, int64_t last) {
        with_block_size<typename V::Scalar>(job.block_size,
                        [&](auto d) { TileKernels<V>::invert_dense(job, first, last, d); });
      },
  };
}

}  // namespace
}  // namespace mbf
