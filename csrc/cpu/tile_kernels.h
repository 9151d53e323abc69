// The CPU kernels: core mathematics on SIMD lanes, tile by tile.
//
// One translation unit per instruction set includes this file and instantiates entry_points for its
// own lane types. Functions that are not always inlined are in an unnamed namespace on purpose: if
// two units shared one, the linker might keep the copy with instructions that the machine lacks.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>

#include "../core/adam_step.h"
#include "../core/rank_one_ema.h"
#include "../core/step.h"
#include "../core/symmetric_product.h"
#include "../job.h"
#include "element_formats.h"
#include "lanes.h"
#include "natural_memory.h"
#include "streaming.h"
#include "tile_inverse.h"
#include "tile_pass.h"
#include "transpose.h"

namespace mbf {
namespace {

// In float32 all loops over blocks up to this size are expanded. Beyond it rolled loops are as fast
// (docs/cpu.md has the measurement). In float64, which is for checking and not for speed, no loop
// is. A test build that has to be quick may set fewer sizes.
#if !defined(MBF_MAX_EXPANDED)
#define MBF_MAX_EXPANDED 10
#endif
constexpr int kMaxExpanded = MBF_MAX_EXPANDED;

constexpr int kMaxTileElements = kTileBlocks * kMaxBlock;

// The vectors of the memory-bound operations, update and step: two registers where one is narrower
// than a tile. With AVX2 a cache line of G or P is then used whole as soon as it arrives, which
// saves a few per cent beyond the cache.
template <class V>
using LineLanes =
    std::conditional_t<(V::kLanes < kTileBlocks) && !IsPair<V>::value, LanePair<V>, V>;

template <class V>
struct TriangleSlot {
  typename V::Scalar* p;
  MBF_INLINE V load() const { return V::load(p); }
  MBF_INLINE void store(V x) const { x.store(p); }
};

// core/step.h for runs of elements in natural order.
template <class L>
class StepLanes {
 public:
  using T = typename L::Scalar;
  explicit MBF_INLINE StepLanes(const TileJob& job)
      : scalars_(job.scalars.map([](double x) MBF_INLINE_LAMBDA { return broadcast<L>(x); })) {}

  // Writes what P is multiplied with to `ahead`, unless it is M itself.
  MBF_INLINE void accumulate(T* m, const T* grads, T* ahead) const {
    const L gradient = L::load(grads);
    const L fresh = accumulated(scalars_, L::load(m), gradient);
    fresh.store(m);
    if (ahead != m) looked_ahead(scalars_, fresh, gradient).store(ahead);
  }
  MBF_INLINE void move(T* params, const T* u) const {
    moved(scalars_, L::load(params), L::load(u)).store(params);
  }

  // The same for `count` elements, a multiple of L::kLanes.
  MBF_INLINE void accumulate(T* m, const T* grads, T* ahead, int64_t count) const {
    for (int64_t i = 0; i < count; i += L::kLanes) accumulate(m + i, grads + i, ahead + i);
  }
  MBF_INLINE void move(T* params, const T* u, int64_t count) const {
    for (int64_t i = 0; i < count; i += L::kLanes) move(params + i, u + i);
  }

 private:
  StepScalars<L> scalars_;
};

template <class V>
class TileKernels {
 public:
  using T = typename V::Scalar;
  static constexpr int N = V::kLanes;
  static constexpr int W = kTileBlocks;
  static_assert(W % N == 0);

  // Updates G of one tile with the gradients of its 16 blocks.
  template <class Dim>
  static __attribute__((noinline)) void update_tile(T* stats, const T* grads, double beta, Dim d) {
    using L = LineLanes<V>;
    for (int h = 0; h < W; h += L::kLanes) {
      L v[kMaxBlock];
      load_transposed<L>(grads + h * d, d, d, v);
      rank_one_ema([&](int i) MBF_INLINE_LAMBDA { return TriangleSlot<L>{stats + i * W + h}; }, v,
                   broadcast<L>(beta), broadcast<L>(1.0 - beta), d);
    }
  }

  // Computes P M of one tile from the momenta of its 16 blocks, both in natural order. Returns the
  // squared norm of P M if `with_norm` is set.
  template <class Stored, class Dim, class AfterRow>
  static MBF_INLINE double precondition_tile(const Stored* inverse, const T* momenta, T* out,
                                             bool with_norm, Dim d, AfterRow after_row) {
    using L = LineLanes<V>;
    double squared_norm = 0;
    for (int h = 0; h < W; h += L::kLanes) {
      L m[kMaxBlock];
      L u[kMaxBlock];
      load_transposed<L>(momenta + h * d, d, d, m);
      symmetric_product([&](int i) MBF_INLINE_LAMBDA { return load_lanes<L>(inverse + i * W + h); },
                        m, u, d, after_row);
      store_transposed<L>(out + h * d, d, d, [&](int c) MBF_INLINE_LAMBDA { return u[c]; });
      if (with_norm) squared_norm += sum_of_squares(u, d);
    }
    return squared_norm;
  }

  template <class Dim>
  static void run(const TilePass& pass, int64_t first, int64_t last, Dim d) {
    if (pass.job.inverse_format == Format::BFloat16) {
      if constexpr (sizeof(T) == 4) run_stored<BFloat16>(pass, first, last, d);
    } else {
      run_stored<T>(pass, first, last, d);
    }
    if (pass.stream_inverse) stream_fence();
  }

  template <class Stored, class Dim>
  static void run_stored(const TilePass& pass, int64_t first, int64_t last, Dim d) {
    const TileJob& job = pass.job;
    int64_t tensor = tensor_of(job, first);
    for (int64_t tile = first; tile < last; ++tensor) {
      const int64_t end = std::min(last, job.tile_start[tensor + 1]);
      if (is_absent(job, tensor)) {
        tile = end;
        continue;
      }
      const bool plain = job.step && !job.refresh_targets && is_plain<T>(job.params[tensor]) &&
                         is_plain<T>(job.grads[tensor]) && is_plain<T>(job.momenta[tensor]);
      const int64_t whole = job.tile_start[tensor] + job.blocks[tensor] / W;
      while (tile < end) {
        const int64_t stop = std::min(end, next_change(job, tile));
        const bool step_only = !job.update.contains(tile) && !job.invert.contains(tile);
        if (plain && step_only && tile < whole) {
          const int64_t plain_stop = std::min(stop, whole);
          step_plain<Stored>(pass, tensor, tile, plain_stop, d);
          tile = plain_stop;
        }
        for (; tile < stop; ++tile) run_tile<Stored>(pass, tensor, tile, d);
      }
    }
  }

  // The common case of a step: whole tiles of plain tensors. Between the rows of P of one tile, the
  // momenta of the next tile are accumulated and the parameters of the previous one are moved. All
  // four memory streams are thus always in flight, which takes 14 % less time at d = 9 than one
  // after the other.
  template <class Stored, class Dim>
  static __attribute__((noinline)) void step_plain(const TilePass& pass, int64_t tensor,
                                                   int64_t first, int64_t last, Dim d) {
    using L = LineLanes<V>;
    const TileJob& job = pass.job;
    const bool rescales = job.rescales();
    const int64_t elements = static_cast<int64_t>(W) * d;
    const int64_t origin = job.tile_start[tensor];
    const Stored* inverse = static_cast<const Stored*>(job.inverse);
    T* params = static_cast<T*>(job.params[tensor].data) - origin * elements;
    T* momenta = static_cast<T*>(job.momenta[tensor].data) - origin * elements;
    const T* grads = static_cast<const T*>(job.grads[tensor].data) - origin * elements;
    const StepLanes<L> lanes(job);

    // Stands in for the tile before the first one and the tile after the last one.
    alignas(64) T nowhere[kMaxTileElements];
    std::fill_n(nowhere, elements, T(0));
    alignas(64) T direction_buffer[2][kMaxTileElements];
    const T* previous_direction = nowhere;
    alignas(64) T ahead_buffer[2][kMaxTileElements];
    const auto ahead_of = [&](int64_t tile, T* own_momenta) MBF_INLINE_LAMBDA {
      return job.looks_ahead() ? ahead_buffer[tile & 1] : own_momenta;
    };

    T* ahead = ahead_of(first, momenta + first * elements);
    lanes.accumulate(momenta + first * elements, grads + first * elements, ahead, elements);
    for (int64_t tile = first; tile < last; ++tile) {
      const bool has_next = tile + 1 < last;
      const bool has_previous = tile > first && !rescales;
      T* next_momenta = has_next ? momenta + (tile + 1) * elements : nowhere;
      const T* next_grads = has_next ? grads + (tile + 1) * elements : nowhere;
      T* previous_params = has_previous ? params + (tile - 1) * elements : nowhere;
      T* direction = rescales ? directions_of(pass, tile, d) : direction_buffer[tile & 1];
      T* next_ahead = ahead_of(tile + 1, next_momenta);
      int64_t i = 0;
      const double squared_norm =
          precondition_tile(inverse + tile * triangle_size(d) * W, ahead, direction, rescales, d,
                            [&]() MBF_INLINE_LAMBDA {
                              lanes.accumulate(next_momenta + i, next_grads + i, next_ahead + i);
                              lanes.move(previous_params + i, previous_direction + i);
                              i += L::kLanes;
                            });
      ahead = next_ahead;
      if (rescales) {
        job.norms[tile].direction = squared_norm;
      } else {
        previous_direction = direction;
      }
    }
    if (rescales) return;
    lanes.move(params + (last - 1) * elements, previous_direction, elements);
  }

  // Does everything the job asks of one tile while it is in cache. Serves any element format, any
  // strides, and the padded last tile of a tensor.
  template <class Stored, class Dim>
  static MBF_INLINE void run_tile(const TilePass& pass, int64_t tensor, int64_t tile, Dim d) {
    const TileJob& job = pass.job;
    const int elements = triangle_size(d);
    const int64_t block = (tile - job.tile_start[tensor]) * W;
    const int64_t count = std::min<int64_t>(W, job.blocks[tensor] - block);

    alignas(64) T grad_buffer[kMaxTileElements];
    const T* grads = nullptr;
    const bool update = job.update.contains(tile);
    if (update || job.step) {
      grads = natural_blocks<T>(job.grads[tensor], d, block, count, W, grad_buffer);
    }
    if (update) {
      T* stats = static_cast<T*>(job.stats) + tile * elements * W;
      update_tile(stats, grads, job.beta, d);
      Tally& tally = job.tallies[tile];
      tally.weight = job.beta * tally.weight + (1.0 - job.beta);
      tally.trace = tally.weight > 0 ? trace(stats, d) / tally.weight : 0.0;
    }
    if (job.invert.contains(tile)) {
      TileInverse<V>::tile(pass, tile, static_cast<int>(count), job.damping.of(tensor), d);
    }
    if (job.step) {
      alignas(64) T momentum_buffer[kMaxTileElements];
      alignas(64) T direction_buffer[kMaxTileElements];
      alignas(64) T ahead_buffer[kMaxTileElements];
      T* momenta = natural_blocks<T>(job.momenta[tensor], d, block, count, W, momentum_buffer);
      T* ahead = job.looks_ahead() ? ahead_buffer : momenta;
      const StepLanes<LineLanes<V>> lanes(job);
      lanes.accumulate(momenta, grads, ahead, W * d);
      write_back<T>(job.momenta[tensor], d, block, count, momenta, momentum_buffer);

      if (job.refresh_targets) {
        const T* stats = static_cast<const T*>(job.stats) + tile * elements * W;
        job.norms[tile].adam = adam_square(job, stats, ahead, job.tallies[tile].weight, d);
      }

      const bool rescales = job.rescales();
      T* direction = rescales ? directions_of(pass, tile, d) : direction_buffer;
      const Stored* inverse = static_cast<const Stored*>(job.inverse) + tile * elements * W;
      const double squared_norm =
          precondition_tile(inverse, ahead, direction, rescales, d, []() MBF_INLINE_LAMBDA {});
      if (rescales) {
        job.norms[tile].direction = squared_norm;
      } else {
        alignas(64) T param_buffer[kMaxTileElements];
        T* params = natural_blocks<T>(job.params[tensor], d, block, count, W, param_buffer);
        lanes.move(params, direction, W * d);
        write_back<T>(job.params[tensor], d, block, count, params, param_buffer);
      }
    }
  }

  // The second pass of a rescaled step. Where a direction is so small that the factor which
  // rescales it does not fit float32, it is multiplied in double.
  static void apply(const TilePass& pass, int64_t first, int64_t last) {
    const TileJob& job = pass.job;
    const int d = job.block_size;
    int64_t tensor = tensor_of(job, first);
    for (int64_t tile = first; tile < last; ++tile) {
      while (tile >= job.tile_start[tensor + 1]) ++tensor;
      if (is_absent(job, tensor)) continue;
      const int64_t block = (tile - job.tile_start[tensor]) * W;
      const int64_t count = std::min<int64_t>(W, job.blocks[tensor] - block);
      const T* direction = directions_of(pass, tile, d);
      const double rate = job.scalars.lr * pass.scales[tensor];
      const T decay = static_cast<T>(job.scalars.lr * job.scalars.weight_decay);
      alignas(64) T param_buffer[kMaxTileElements];
      T* params = natural_blocks<T>(job.params[tensor], d, block, count, W, param_buffer);
      if (std::abs(rate) < 1e30) {
        const T short_rate = static_cast<T>(rate);
        for (int i = 0; i < W * d; ++i) {
          params[i] = params[i] - (short_rate * direction[i] + decay * params[i]);
        }
      } else {
        for (int i = 0; i < W * d; ++i) {
          const T change = static_cast<T>(rate * static_cast<double>(direction[i]));
          params[i] = params[i] - (change + decay * params[i]);
        }
      }
      write_back<T>(job.params[tensor], d, block, count, params, param_buffer);
    }
  }

 private:
  static MBF_INLINE T* directions_of(const TilePass& pass, int64_t tile, int d) {
    return static_cast<T*>(pass.job.directions) + (tile - pass.first_direction) * W * d;
  }

  // Adds up the blocks whose value is finite: a bad block must not spoil what its neighbours share.
  // A pairwise tree sum has a fixed order and can be vectorised.
  template <int Blocks, class S>
  static MBF_INLINE double sum_of_finite(const S (&per_block)[Blocks]) {
    double sums[Blocks];
    for (int l = 0; l < Blocks; ++l) {
      const double value = static_cast<double>(per_block[l]);
      sums[l] = std::isfinite(value) ? value : 0.0;
    }
    for (int half = Blocks / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) sums[l] += sums[l + half];
    }
    return sums[0];
  }

  template <class L, class Dim>
  static MBF_INLINE double sum_of_squares(const L* u, Dim d) {
    if constexpr (sizeof(T) == 4) {
      L square = broadcast<L>(0);
      for_each(zero_like(d), d, [&](auto c) MBF_INLINE_LAMBDA { square = square + u[c] * u[c]; });
      const bool fits = all_lanes(less(square, broadcast<L>(1e30))) &&
                        all_lanes(less(broadcast<L>(1e-30), square));
      if (fits) {
        T squares[L::kLanes];
        square.store(squares);
        return sum_of_finite(squares);
      }
    }
    return sum_of_wide_squares(u, d);
  }

  // The same in double, for directions whose squares may overflow or underflow in float32.
  template <class L>
  static __attribute__((noinline)) double sum_of_wide_squares(const L* u, int d) {
    double squares[L::kLanes] = {};
    for (int c = 0; c < d; ++c) {
      T lanes[L::kLanes];
      u[c].store(lanes);
      for (int l = 0; l < L::kLanes; ++l) squares[l] += static_cast<double>(lanes[l]) * lanes[l];
    }
    return sum_of_finite(squares);
  }

  static double trace(const T* stats, int d) {
    T traces[W] = {};
    for (int e = 0; e < d; ++e) {
      for (int l = 0; l < W; ++l) traces[l] += stats[triangle_index(e, e) * W + l];
    }
    return sum_of_finite(traces);
  }

  // The squared norm of Adam's step for a tile whose momenta have been accumulated.
  static double adam_square(const TileJob& job, const T* stats, const T* momenta, double weight,
                            int d) {
    using L = LineLanes<V>;
    T squares[W];
    for (int h = 0; h < W; h += L::kLanes) {
      L m[kMaxBlock];
      load_transposed<L>(momenta + h * d, d, d, m);
      clipped_adam_square(
          [&](int e) MBF_INLINE_LAMBDA { return L::load(stats + triangle_index(e, e) * W + h); }, m,
          broadcast<L>(job.scalars.momentum_correction),
          broadcast<L>(weight > 0 ? 1.0 / weight : 1.0), d)
          .store(squares + h);
    }
    return sum_of_finite(squares);
  }

  static MBF_INLINE bool is_absent(const TileJob& job, int64_t tensor) {
    return job.grads != nullptr && job.grads[tensor].data == nullptr;
  }

  // The first tile after this one at which the range of update or invert begins or ends.
  static MBF_INLINE int64_t next_change(const TileJob& job, int64_t tile) {
    int64_t next = INT64_MAX;
    for (int64_t edge : {job.update.first, job.update.last, job.invert.first, job.invert.last}) {
      if (edge > tile) next = std::min(next, edge);
    }
    return next;
  }

  static MBF_INLINE int64_t tensor_of(const TileJob& job, int64_t tile) {
    return std::upper_bound(job.tile_start, job.tile_start + job.tensors + 1, tile) -
           job.tile_start - 1;
  }
};

// Calls f(Const<d>) for sizes whose loops are expanded, f(d) for the others.
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
EntryPoints entry_points() {
  return {
      [](const TilePass& pass, int64_t first, int64_t last) {
        with_block_size<typename V::Scalar>(
            pass.job.block_size, [&](auto d) { TileKernels<V>::run(pass, first, last, d); });
      },
      [](const TilePass& pass, int64_t first, int64_t last) {
        TileKernels<V>::apply(pass, first, last);
      },
      [](const DenseJob& job, int64_t first, int64_t last) {
        with_block_size<typename V::Scalar>(
            job.block_size, [&](auto d) { TileInverse<V>::dense(job, first, last, d); });
      },
  };
}

}  // namespace
}  // namespace mbf
