// SIMD lanes: one block per lane.
//
// Lanes<T, N> holds the same element of N blocks. It uses the compiler's vector extension, so that
// the same source becomes SSE2, AVX2, AVX-512 or NEON by compiler flags alone. Multiply-adds are
// written a * b + c; -ffp-contract=fast makes them FMAs where the target has them.
// LanePair<V> is two vectors that act as one with twice the lanes.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "../core/scalar_lane.h"

#if defined(__AVX__)
#include <immintrin.h>
#endif

namespace mbf {

template <class T, int N>
struct Lanes {
  typedef T Raw __attribute__((vector_size(N * sizeof(T))));
  using Bits = std::conditional_t<sizeof(T) == 4, int32_t, int64_t>;
  typedef Bits Mask __attribute__((vector_size(N * sizeof(T))));
  using Scalar = T;
  static constexpr int kLanes = N;

  Raw v;

  static MBF_INLINE Lanes load(const T* p) {
    Lanes r;
    __builtin_memcpy(&r.v, p, sizeof(Raw));
    return r;
  }
  MBF_INLINE void store(T* p) const { __builtin_memcpy(p, &v, sizeof(Raw)); }

  friend MBF_INLINE Lanes operator+(Lanes a, Lanes b) { return {a.v + b.v}; }
  friend MBF_INLINE Lanes operator-(Lanes a, Lanes b) { return {a.v - b.v}; }
  friend MBF_INLINE Lanes operator*(Lanes a, Lanes b) { return {a.v * b.v}; }
};

template <class V>
struct LanePair {
  using Scalar = typename V::Scalar;
  static constexpr int kLanes = 2 * V::kLanes;
  struct Mask {
    typename V::Mask lo, hi;
    friend MBF_INLINE Mask operator&(Mask a, Mask b) { return {a.lo & b.lo, a.hi & b.hi}; }
  };

  V lo, hi;

  static MBF_INLINE LanePair load(const Scalar* p) { return {V::load(p), V::load(p + V::kLanes)}; }
  MBF_INLINE void store(Scalar* p) const {
    lo.store(p);
    hi.store(p + V::kLanes);
  }

  friend MBF_INLINE LanePair operator+(LanePair a, LanePair b) {
    return {a.lo + b.lo, a.hi + b.hi};
  }
  friend MBF_INLINE LanePair operator-(LanePair a, LanePair b) {
    return {a.lo - b.lo, a.hi - b.hi};
  }
  friend MBF_INLINE LanePair operator*(LanePair a, LanePair b) {
    return {a.lo * b.lo, a.hi * b.hi};
  }
};

template <class T, int N>
struct LaneTraits<Lanes<T, N>> {
  using Scalar = T;
  using Mask = typename Lanes<T, N>::Mask;
  static constexpr int kLanes = N;
  static MBF_INLINE Lanes<T, N> broadcast(double value) {
    return {typename Lanes<T, N>::Raw{} + static_cast<T>(value)};
  }
};

template <class V>
struct LaneTraits<LanePair<V>> {
  using Scalar = typename V::Scalar;
  using Mask = typename LanePair<V>::Mask;
  static constexpr int kLanes = 2 * V::kLanes;
  static MBF_INLINE LanePair<V> broadcast(double value) {
    const V half = LaneTraits<V>::broadcast(value);
    return {half, half};
  }
};

template <class V>
struct IsPair : std::false_type {};
template <class V>
struct IsPair<LanePair<V>> : std::true_type {};

template <class T, int N>
MBF_INLINE Lanes<T, N> reciprocal(Lanes<T, N> x) {
  return {T(1) / x.v};
}
template <class V>
MBF_INLINE LanePair<V> reciprocal(LanePair<V> x) {
  return {reciprocal(x.lo), reciprocal(x.hi)};
}

// Goes through an array, because compilers make one vector instruction of such a loop.
template <class T, int N>
MBF_INLINE Lanes<T, N> square_root(Lanes<T, N> x) {
  T elements[N];
  x.store(elements);
  for (int i = 0; i < N; ++i) elements[i] = square_root(elements[i]);
  return Lanes<T, N>::load(elements);
}
template <class V>
MBF_INLINE LanePair<V> square_root(LanePair<V> x) {
  return {square_root(x.lo), square_root(x.hi)};
}

// The bits of float lanes, and of lanes in a format of 16 bits.
template <int N>
struct WordLanes {
  typedef uint16_t Short __attribute__((vector_size(N * sizeof(uint16_t))));
  typedef uint32_t Word __attribute__((vector_size(N * sizeof(uint32_t))));
};
template <int N>
using Words = typename WordLanes<N>::Word;

template <int N>
MBF_INLINE Lanes<float, N> nearest_bfloat16(Lanes<float, N> x) {
  return {(typename Lanes<float, N>::Raw)(((Words<N>)x.v + 0x8000u) & 0xffff0000u)};
}
template <class V>
MBF_INLINE LanePair<V> nearest_bfloat16(LanePair<V> x) {
  return {nearest_bfloat16(x.lo), nearest_bfloat16(x.hi)};
}

template <int N>
MBF_INLINE Lanes<float, N> bfloat16_above(Lanes<float, N> x) {
  return {(typename Lanes<float, N>::Raw)(((Words<N>)x.v + 0xffffu) & 0xffff0000u)};
}
template <class V>
MBF_INLINE LanePair<V> bfloat16_above(LanePair<V> x) {
  return {bfloat16_above(x.lo), bfloat16_above(x.hi)};
}

template <int N>
MBF_INLINE Lanes<float, N> rough_reciprocal_root(Lanes<float, N> x) {
  using Raw = typename Lanes<float, N>::Raw;
  const Raw guess = (Raw)(0x5f3759dfu - ((Words<N>)x.v >> 1));
  return {guess * (1.5f - 0.5f * guess * (x.v * guess))};
}
template <class V>
MBF_INLINE LanePair<V> rough_reciprocal_root(LanePair<V> x) {
  return {rough_reciprocal_root(x.lo), rough_reciprocal_root(x.hi)};
}

template <class T, int N>
MBF_INLINE Lanes<T, N> at_most(Lanes<T, N> x, Lanes<T, N> limit) {
  return {x.v > limit.v ? limit.v : x.v};
}
template <class V>
MBF_INLINE LanePair<V> at_most(LanePair<V> x, LanePair<V> limit) {
  return {at_most(x.lo, limit.lo), at_most(x.hi, limit.hi)};
}

template <class T, int N>
MBF_INLINE typename Lanes<T, N>::Mask positive(Lanes<T, N> x) {
  return x.v > typename Lanes<T, N>::Raw{};
}
template <class V>
MBF_INLINE typename LanePair<V>::Mask positive(LanePair<V> x) {
  return {positive(x.lo), positive(x.hi)};
}

template <class T, int N>
MBF_INLINE typename Lanes<T, N>::Mask less(Lanes<T, N> x, Lanes<T, N> limit) {
  return x.v < limit.v;
}
template <class V>
MBF_INLINE typename LanePair<V>::Mask less(LanePair<V> x, LanePair<V> limit) {
  return {less(x.lo, limit.lo), less(x.hi, limit.hi)};
}

// True if the comparison holds in every lane.
template <class Mask>
MBF_INLINE bool all_lanes(Mask m) {
  if constexpr (requires { m.lo; }) {
    return all_lanes(m.lo & m.hi);
  } else {
#if defined(__AVX__)
    if constexpr (sizeof(Mask) == 32) {
      return _mm256_testc_si256((__m256i)m, _mm256_set1_epi32(-1)) != 0;
    }
#endif
    uint64_t words[sizeof(Mask) / sizeof(uint64_t)];
    std::memcpy(words, &m, sizeof m);
    uint64_t all = ~uint64_t{0};
    for (uint64_t word : words) all &= word;
    return all == ~uint64_t{0};
  }
}

}  // namespace mbf
