// The lane interface for a plain float or double, which is a vector of one lane.
//
// The block mathematics needs + - * on a lane type V and the functions below. A SIMD vector
// computes them for many blocks at once (csrc/cpu/lanes.h); a CUDA thread and the C++ tests use the
// scalar itself.
#pragma once

#include "macros.h"

namespace mbf {

template <class V>
struct LaneTraits;

template <>
struct LaneTraits<float> {
  using Scalar = float;
  using Mask = bool;
  static constexpr int kLanes = 1;
  static MBF_INLINE float broadcast(double value) { return static_cast<float>(value); }
};

template <>
struct LaneTraits<double> {
  using Scalar = double;
  using Mask = bool;
  static constexpr int kLanes = 1;
  static MBF_INLINE double broadcast(double value) { return value; }
};

template <class V>
using ScalarOf = typename LaneTraits<V>::Scalar;

template <class V>
MBF_INLINE V broadcast(double value) {
  return LaneTraits<V>::broadcast(value);
}

// 1 / x, correctly rounded. The inverse has no other division.
MBF_INLINE float reciprocal(float x) { return 1.0f / x; }
MBF_INLINE double reciprocal(double x) { return 1.0 / x; }

#if defined(__CUDA_ARCH__)
MBF_INLINE float square_root(float x) { return sqrtf(x); }
MBF_INLINE double square_root(double x) { return sqrt(x); }
#else
MBF_INLINE float square_root(float x) { return __builtin_sqrtf(x); }
MBF_INLINE double square_root(double x) { return __builtin_sqrt(x); }
#endif

MBF_INLINE unsigned float_bits(float x) {
  unsigned u;
  __builtin_memcpy(&u, &x, 4);
  return u;
}
MBF_INLINE float bits_float(unsigned u) {
  float x;
  __builtin_memcpy(&x, &u, 4);
  return x;
}

// x rounded to a value of bfloat16: the nearest one, of two the one further from zero, which is
// cheaper than the even one; or the next one that is not smaller. For finite x, and for x >= 0.
MBF_INLINE float nearest_bfloat16(float x) {
  return bits_float((float_bits(x) + 0x8000u) & 0xffff0000u);
}
MBF_INLINE float bfloat16_above(float x) {
  return bits_float((float_bits(x) + 0xffffu) & 0xffff0000u);
}

// 1 / sqrt(x) of a positive normal x to within 2^-9. Halving the bits of x halves its exponent,
// which gives the result to within 4 %; a Newton step squares that error.
#if defined(__CUDA_ARCH__)
MBF_INLINE float rough_reciprocal_root(float x) { return rsqrtf(x); }
#else
MBF_INLINE float rough_reciprocal_root(float x) {
  const float guess = bits_float(0x5f3759dfu - (float_bits(x) >> 1));
  return guess * (1.5f - 0.5f * guess * (x * guess));
}
#endif

// The smaller of x and limit; NaN if x is NaN.
MBF_INLINE float at_most(float x, float limit) { return x > limit ? limit : x; }
MBF_INLINE double at_most(double x, double limit) { return x > limit ? limit : x; }

// Comparisons; false for NaN.
MBF_INLINE bool positive(float x) { return x > 0.0f; }
MBF_INLINE bool positive(double x) { return x > 0.0; }
MBF_INLINE bool less(float x, float limit) { return x < limit; }
MBF_INLINE bool less(double x, double limit) { return x < limit; }

}  // namespace mbf
