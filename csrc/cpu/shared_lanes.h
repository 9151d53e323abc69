// What the kernels for blocks that rows share have in common: a SIMD lane is a column.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "lanes.h"
#include "shared_pass.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

#if defined(__AVX512F__) || defined(__aarch64__)
constexpr int kVectorRegisters = 32;
#else
constexpr int kVectorRegisters = 16;
#endif

template <class V>
struct SharedLanes {
  using T = typename V::Scalar;
  static constexpr int L = V::kLanes;
  // Sums of a product are kept in rows_of(N) rows of N vectors, so that they, a row of vectors of
  // the matrix and a scalar just fit into the registers.
  static constexpr int kBudget = kVectorRegisters / (IsPair<V>::value ? 2 : 1);
  static constexpr int kMostVectors = kBudget / 8;
  static constexpr int rows_of(int n) {
    if (kBudget == 32) return n <= 2 ? 12 : n == 3 ? 8 : 6;
    return kBudget == 16 && n == 1 ? 12 : 6;
  }
  static_assert(kSharedRows % 12 == 0 && kSharedRows % 8 == 0);

  // The products that one row of a matrix takes.
  static constexpr int64_t panels_of(int64_t width) {
    return (width + L * kMostVectors - 1) / (L * kMostVectors);
  }

  // Between two rows of a buffer: a strip, and room for the last vector of its last piece.
  static constexpr int kStride = kSharedStrip + 16;
  static_assert(kStride % L == 0 && L <= kMatrixSlack);

  static int64_t layer_of(const int64_t* first_task, int64_t layers, int64_t task) {
    return std::upper_bound(first_task, first_task + layers + 1, task) - first_task - 1;
  }

  static MBF_INLINE V splat(T x) {
    if constexpr (IsPair<V>::value) {
      using Half = decltype(V::lo);
      const Half half{x - typename Half::Raw{}};
      return {half, half};
    } else {
      return {x - typename V::Raw{}};  // x - 0 is x, also for -0
    }
  }

  // Calls f(x, i) for runs of elements: x is of the vector type for whole vectors from i on, and
  // of the scalar type for what is left.
  template <class F>
  static MBF_INLINE void for_elements(int64_t count, F f) {
    int64_t i = 0;
    for (; i + L <= count; i += L) f(V{}, i);
    for (; i < count; ++i) f(T{}, i);
  }
  static MBF_INLINE V load(V, const T* p) { return V::load(p); }
  static MBF_INLINE T load(T, const T* p) { return *p; }
  static MBF_INLINE void store(V x, T* p) { x.store(p); }
  static MBF_INLINE void store(T x, T* p) { *p = x; }

  // A sum of terms(x, i), which are vectors or scalars.
  template <class F>
  static MBF_INLINE T sum_of(int64_t count, F terms) {
    V sums = broadcast<V>(0);
    T sum = 0;
    for_elements(count, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
      if constexpr (std::is_same_v<decltype(x), T>) {
        sum += terms(x, i);
      } else {
        sums = sums + terms(x, i);
      }
    });
    T lanes[L];
    sums.store(lanes);
    for (int half = L / 2; half > 0; half /= 2) {
      for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
    }
    return sum + lanes[0];
  }

  static MBF_INLINE T square_sum(const T* values, int count) {
    return sum_of(count, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
      const auto value = load(x, values + i);
      return value * value;
    });
  }

  template <int R, int N>
  static MBF_INLINE void clear(V (&sums)[R][N]) {
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      MBF_UNROLL
      for (int n = 0; n < N; ++n) sums[r][n] = broadcast<V>(0);
    }
  }

  // Calls f(std::integral_constant<int, n>).
  template <int N = 1, class F>
  static MBF_INLINE void with_vectors(int n, F f) {
    if constexpr (N < kMostVectors) {
      if (n != N) return with_vectors<N + 1>(n, f);
    }
    f(std::integral_constant<int, N>{});
  }
};

}  // namespace
}  // namespace mbf
