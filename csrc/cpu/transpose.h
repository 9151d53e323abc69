// Transposes blocks in registers, without gather or scatter, between natural memory, where the
// elements of a block are contiguous, and lanes, where the same element of neighbouring blocks is.
//
// Lane l of a vector belongs to row l, the run of elements at base + l * stride. Rows are moved in
// panels of kPanel columns, 16 bytes of each row. One vector takes those of rows r, r + kPanel,
// ...; a 4 x 4 (float) or 2 x 2 (double) transpose inside each 16 bytes then turns kPanel vectors
// of rows into kPanel vectors of columns.
#pragma once

#include <cstddef>
#include <utility>

#include "../core/extent.h"
#include "lanes.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace mbf {
namespace detail {

#if defined(__clang__)
#define MBF_SHUFFLE(a, b, Index, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MBF_SHUFFLE(a, b, Index, ...) __builtin_shuffle(a, b, Index{__VA_ARGS__})
#endif

// load_rows loads 16 bytes of every kPanel-th row, beginning at p, into one vector; store_rows
// stores them.
template <int N>
MBF_INLINE typename Lanes<float, N>::Raw load_rows(const float* p,
                                                   [[maybe_unused]] ptrdiff_t stride) {
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    const __m512 a = _mm512_castps128_ps512(_mm_loadu_ps(p));
    const __m512 b = _mm512_insertf32x4(a, _mm_loadu_ps(p + 4 * stride), 1);
    const __m512 c = _mm512_insertf32x4(b, _mm_loadu_ps(p + 8 * stride), 2);
    return (typename Lanes<float, N>::Raw)_mm512_insertf32x4(c, _mm_loadu_ps(p + 12 * stride), 3);
  }
#endif
#if defined(__AVX__)
  if constexpr (N == 8) {
    const __m256 a = _mm256_castps128_ps256(_mm_loadu_ps(p));
    return (typename Lanes<float, N>::Raw)_mm256_insertf128_ps(a, _mm_loadu_ps(p + 4 * stride), 1);
  }
#endif
  if constexpr (N == 4) return Lanes<float, N>::load(p).v;
}

template <int N>
MBF_INLINE void store_rows(typename Lanes<float, N>::Raw v, float* p,
                           [[maybe_unused]] ptrdiff_t stride) {
#if defined(__AVX512F__)
  if constexpr (N == 16) {
    const __m512 x = (__m512)v;
    _mm_storeu_ps(p, _mm512_castps512_ps128(x));
    _mm_storeu_ps(p + 4 * stride, _mm512_extractf32x4_ps(x, 1));
    _mm_storeu_ps(p + 8 * stride, _mm512_extractf32x4_ps(x, 2));
    _mm_storeu_ps(p + 12 * stride, _mm512_extractf32x4_ps(x, 3));
  }
#endif
#if defined(__AVX__)
  if constexpr (N == 8) {
    _mm_storeu_ps(p, _mm256_castps256_ps128((__m256)v));
    _mm_storeu_ps(p + 4 * stride, _mm256_extractf128_ps((__m256)v, 1));
  }
#endif
  if constexpr (N == 4) Lanes<float, N>{v}.store(p);
}

template <int N>
MBF_INLINE typename Lanes<double, N>::Raw load_rows(const double* p,
                                                    [[maybe_unused]] ptrdiff_t stride) {
#if defined(__AVX512F__)
  if constexpr (N == 8) {
    const __m512d a = _mm512_castpd128_pd512(_mm_loadu_pd(p));
    const __m512d b = _mm512_insertf64x2(a, _mm_loadu_pd(p + 2 * stride), 1);
    const __m512d c = _mm512_insertf64x2(b, _mm_loadu_pd(p + 4 * stride), 2);
    return (typename Lanes<double, N>::Raw)_mm512_insertf64x2(c, _mm_loadu_pd(p + 6 * stride), 3);
  }
#endif
#if defined(__AVX__)
  if constexpr (N == 4) {
    const __m256d a = _mm256_castpd128_pd256(_mm_loadu_pd(p));
    return (typename Lanes<double, N>::Raw)_mm256_insertf128_pd(a, _mm_loadu_pd(p + 2 * stride), 1);
  }
#endif
  if constexpr (N == 2) return Lanes<double, N>::load(p).v;
}

template <int N>
MBF_INLINE void store_rows(typename Lanes<double, N>::Raw v, double* p,
                           [[maybe_unused]] ptrdiff_t stride) {
#if defined(__AVX512F__)
  if constexpr (N == 8) {
    const __m512d x = (__m512d)v;
    _mm_storeu_pd(p, _mm512_castpd512_pd128(x));
    _mm_storeu_pd(p + 2 * stride, _mm512_extractf64x2_pd(x, 1));
    _mm_storeu_pd(p + 4 * stride, _mm512_extractf64x2_pd(x, 2));
    _mm_storeu_pd(p + 6 * stride, _mm512_extractf64x2_pd(x, 3));
  }
#endif
#if defined(__AVX__)
  if constexpr (N == 4) {
    _mm_storeu_pd(p, _mm256_castpd256_pd128((__m256d)v));
    _mm_storeu_pd(p + 2 * stride, _mm256_extractf128_pd((__m256d)v, 1));
  }
#endif
  if constexpr (N == 2) Lanes<double, N>{v}.store(p);
}

// Interleaves the low or the high halves of each 16 bytes of a and b, in units of Width elements.
// For the low halves of floats this is unpcklps (Width 1) or unpcklpd (Width 2) at every vector
// width.
template <class T, int N, int Width, bool High>
struct Interleave {
  static constexpr int kGroup = 16 / sizeof(T);
  typedef typename Lanes<T, N>::Mask Index;
  static constexpr int pick(int lane) {
    const int group = lane / kGroup * kGroup;
    const int unit = lane % kGroup / Width;  // which unit of Width elements in the result
    const int source = unit / 2 + (High ? kGroup / Width / 2 : 0);
    return group + source * Width + lane % Width + (unit % 2 ? N : 0);
  }
  template <class Raw, int... I>
  static MBF_INLINE Raw apply(Raw a, Raw b, std::integer_sequence<int, I...>) {
    return MBF_SHUFFLE(a, b, Index, pick(I)...);
  }
};

template <int Width, bool High, class T, int N>
MBF_INLINE Lanes<T, N> interleave(Lanes<T, N> a, Lanes<T, N> b) {
  return {Interleave<T, N, Width, High>::apply(a.v, b.v, std::make_integer_sequence<int, N>{})};
}

// Turns kPanel vectors of rows into kPanel vectors of columns, in place, or the other way round.
template <int N>
MBF_INLINE void transpose_panel(Lanes<float, N> (&x)[4]) {
  const auto a = interleave<1, false>(x[0], x[1]);
  const auto b = interleave<1, true>(x[0], x[1]);
  const auto c = interleave<1, false>(x[2], x[3]);
  const auto d = interleave<1, true>(x[2], x[3]);
  x[0] = interleave<2, false>(a, c);
  x[1] = interleave<2, true>(a, c);
  x[2] = interleave<2, false>(b, d);
  x[3] = interleave<2, true>(b, d);
}

template <int N>
MBF_INLINE void transpose_panel(Lanes<double, N> (&x)[2]) {
  const auto a = interleave<1, false>(x[0], x[1]);
  x[1] = interleave<1, true>(x[0], x[1]);
  x[0] = a;
}

template <class T, int N, class F>
MBF_INLINE void load_panel(const T* base, ptrdiff_t stride, F put) {
  constexpr int kPanel = 16 / sizeof(T);
  Lanes<T, N> x[kPanel];
  MBF_UNROLL
  for (int r = 0; r < kPanel; ++r) x[r] = {load_rows<N>(base + r * stride, stride)};
  transpose_panel(x);
  MBF_UNROLL
  for (int c = 0; c < kPanel; ++c) put(c, x[c]);
}

template <class T, int N, class F>
MBF_INLINE void store_panel(T* base, ptrdiff_t stride, F get) {
  constexpr int kPanel = 16 / sizeof(T);
  Lanes<T, N> x[kPanel];
  MBF_UNROLL
  for (int c = 0; c < kPanel; ++c) x[c] = get(c);
  transpose_panel(x);
  MBF_UNROLL
  for (int r = 0; r < kPanel; ++r) store_rows<N>(x[r].v, base + r * stride, stride);
}

template <class T, int N, class Count, class Put>
MBF_INLINE void load_columns(const T* base, ptrdiff_t stride, Count count, Put put) {
  constexpr int kPanel = 16 / sizeof(T);
  if (count < kPanel) {
    for_each(zero_like(count), count, [&](auto c) MBF_INLINE_LAMBDA {
      T column[N];
      for (int l = 0; l < N; ++l) column[l] = base[l * stride + c];
      put(c, Lanes<T, N>::load(column));
    });
    return;
  }
  for_panels<kPanel>(zero_like(count), count, [&](auto first, auto size) MBF_INLINE_LAMBDA {
    // A last panel of fewer columns is extended to the left, over columns that were already moved.
    const int start = first + size - kPanel;
    load_panel<T, N>(base + start, stride, [&](int c, Lanes<T, N> x) MBF_INLINE_LAMBDA {
      if (c >= kPanel - size) put(start + c, x);
    });
  });
}

template <class T, int N, class Count, class Get>
MBF_INLINE void store_columns(T* base, ptrdiff_t stride, Count count, Get get) {
  constexpr int kPanel = 16 / sizeof(T);
  if (count < kPanel) {
    for_each(zero_like(count), count, [&](auto c) MBF_INLINE_LAMBDA {
      T column[N];
      get(c).store(column);
      for (int l = 0; l < N; ++l) base[l * stride + c] = column[l];
    });
    return;
  }
  for_panels<kPanel>(zero_like(count), count, [&](auto first, auto size) MBF_INLINE_LAMBDA {
    const int start = first + size - kPanel;
    store_panel<T, N>(base + start, stride,
                      [&](int c) MBF_INLINE_LAMBDA { return get(start + c); });
  });
}

}  // namespace detail

// out[c] gets element c of every lane's row, c = 0 .. count - 1.
template <class V, class Count>
MBF_INLINE void load_transposed(const typename V::Scalar* base, ptrdiff_t stride, Count count,
                                V* out) {
  using T = typename V::Scalar;
  if constexpr (IsPair<V>::value) {
    using Half = decltype(V::lo);
    constexpr int N = Half::kLanes;
    detail::load_columns<T, N>(base, stride, count,
                               [&](int c, Half x) MBF_INLINE_LAMBDA { out[c].lo = x; });
    detail::load_columns<T, N>(base + N * stride, stride, count,
                               [&](int c, Half x) MBF_INLINE_LAMBDA { out[c].hi = x; });
  } else {
    detail::load_columns<T, V::kLanes>(base, stride, count,
                                       [&](int c, V x) MBF_INLINE_LAMBDA { out[c] = x; });
  }
}

// Stores get(c) as element c of every lane's row, c = 0 .. count - 1.
template <class V, class Count, class Get>
MBF_INLINE void store_transposed(typename V::Scalar* base, ptrdiff_t stride, Count count, Get get) {
  using T = typename V::Scalar;
  if constexpr (IsPair<V>::value) {
    constexpr int N = decltype(V::lo)::kLanes;
    detail::store_columns<T, N>(base, stride, count,
                                [&](int c) MBF_INLINE_LAMBDA { return get(c).lo; });
    detail::store_columns<T, N>(base + N * stride, stride, count,
                                [&](int c) MBF_INLINE_LAMBDA { return get(c).hi; });
  } else {
    detail::store_columns<T, V::kLanes>(base, stride, count, get);
  }
}

}  // namespace mbf
