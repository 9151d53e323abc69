// The element formats of tensors and of stored inverses: bfloat16 and float16 as bits.
#pragma once

#include <cstdint>

#include "lanes.h"

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace mbf {

struct BFloat16 {
  uint16_t bits;
};
struct Float16 {
  uint16_t bits;
};

MBF_INLINE float widen(float x) { return x; }
MBF_INLINE double widen(double x) { return x; }
MBF_INLINE float widen(BFloat16 x) { return bits_float(static_cast<uint32_t>(x.bits) << 16); }

// Rounds to nearest even; a NaN stays a NaN.
MBF_INLINE BFloat16 narrow_bfloat16(float x) {
  const uint32_t u = float_bits(x);
  const uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const bool nan = (u & 0x7fffffffu) > 0x7f800000u;
  return {static_cast<uint16_t>(nan ? (u >> 16) | 0x40u : rounded)};
}

#if defined(__F16C__)
MBF_INLINE float widen(Float16 x) { return _cvtsh_ss(x.bits); }
MBF_INLINE Float16 narrow_float16(float x) {
  return {static_cast<uint16_t>(_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT))};
}
#else
MBF_INLINE float widen(Float16 x) {
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  if (magnitude >= 0x7c00u) return bits_float(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
  // Scaling by 2^112 corrects the exponent's bias, also that of subnormals, and is exact.
  const float value = bits_float(magnitude << 13) * bits_float(0x77800000u);
  return bits_float(float_bits(value) | sign);
}
MBF_INLINE Float16 narrow_float16(float x) {
  const uint32_t u = float_bits(x);
  const uint16_t sign = static_cast<uint16_t>((u >> 16) & 0x8000u);
  const uint32_t magnitude = u & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00u)};
  if (magnitude >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00u)};
  if (magnitude < 0x38800000u) {
    // Subnormal result: adding 0.5 moves its bits to the bottom and rounds them to nearest even.
    const float shifted = bits_float(magnitude) + 0.5f;
    return {static_cast<uint16_t>(sign | (float_bits(shifted) - 0x3f000000u))};
  }
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
  return {static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13))};
}
#endif

template <class To>
MBF_INLINE To narrow(float x) {
  if constexpr (std::is_same_v<To, BFloat16>) {
    return narrow_bfloat16(x);
  } else if constexpr (std::is_same_v<To, Float16>) {
    return narrow_float16(x);
  } else {
    return x;
  }
}

// Loads a lane vector from stored elements, whose format may be narrower than that of the lanes.
template <class V>
MBF_INLINE V load_lanes(const typename V::Scalar* p) {
  return V::load(p);
}
template <class V>
MBF_INLINE V load_lanes(const BFloat16* p) {
  if constexpr (IsPair<V>::value) {
    using Half = decltype(V::lo);
    return {load_lanes<Half>(p), load_lanes<Half>(p + Half::kLanes)};
  } else {
    constexpr int N = V::kLanes;
    using Short = typename WordLanes<N>::Short;
    using Word = typename WordLanes<N>::Word;
    Short s;
    __builtin_memcpy(&s, p, sizeof s);
    return {(typename V::Raw)(__builtin_convertvector(s, Word) << 16)};
  }
}

// Only for lanes that hold values of bfloat16: the other bits are cut off.
template <class V>
MBF_INLINE void store_lanes(V x, BFloat16* p) {
  if constexpr (IsPair<V>::value) {
    store_lanes(x.lo, p);
    store_lanes(x.hi, p + decltype(x.lo)::kLanes);
  } else {
    constexpr int N = V::kLanes;
    using Short = typename WordLanes<N>::Short;
    const Short s = __builtin_convertvector((typename WordLanes<N>::Word)x.v >> 16, Short);
    __builtin_memcpy(p, &s, sizeof s);
  }
}
template <class V>
MBF_INLINE void store_lanes(V x, typename V::Scalar* p) {
  x.store(p);
}

}  // namespace mbf
