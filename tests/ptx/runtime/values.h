// Arithmetic of PTX that C++ does not have in this form.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace ptx {

using u8 = uint8_t;
using u16 = uint16_t;
using u32 = uint32_t;
using u64 = uint64_t;
using s8 = int8_t;
using s16 = int16_t;
using s32 = int32_t;
using s64 = int64_t;

template <class To, class From>
inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

template <class T>
inline T load(const u8* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

template <class T>
inline void store(u8* to, T value) {
  std::memcpy(to, &value, sizeof value);
}

// --- floats -------------------------------------------------------------------------------------

inline float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

template <class T>
inline T square_root(T x) {
  return std::sqrt(x);
}

// The GPU's own approximations are a little less exact than these.
inline float reciprocal_root(float x) { return static_cast<float>(1.0 / std::sqrt(double{x})); }
inline float power_of_two(float x) { return static_cast<float>(std::exp2(double{x})); }
inline float binary_logarithm(float x) { return static_cast<float>(std::log2(double{x})); }

// The operand that is a number wins; of two zeros, -0 is the smaller.
template <class T>
inline T least(T a, T b) {
  if (a != a) return b;
  if (b != b) return a;
  if (a == b) return std::signbit(a) ? a : b;
  return a < b ? a : b;
}

template <class T>
inline T greatest(T a, T b) {
  return -least(-a, -b);
}

inline float from_half(u16 x) { return bits<_Float16>(x); }
inline u16 to_half(float x) { return bits<u16>(static_cast<_Float16>(x)); }
inline float from_brain(u16 x) { return bits<float>(u32{x} << 16); }

inline u16 to_brain(float x) {
  if (x != x) return 0x7fff;
  const u32 raw = bits<u32>(x);
  return static_cast<u16>((raw + 0x7fff + (raw >> 16 & 1)) >> 16);
}

// --- integers -----------------------------------------------------------------------------------

template <class T>
inline constexpr u32 kBits = 8 * sizeof(T);

template <class T>
inline T shifted_left(T x, u32 n) {
  return n < kBits<T> ? static_cast<T>(x << n) : T{0};
}

// A shift by too many places leaves the sign.
template <class T>
inline T shifted_right(T x, u32 n) {
  if (n < kBits<T>) return static_cast<T>(x >> n);
  return x < 0 ? static_cast<T>(-1) : T{0};
}

// A GPU does not trap: a quotient by zero has all bits set.
template <class T>
inline T quotient(T a, T b) {
  if (b == 0) return static_cast<T>(~T{0});
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return static_cast<T>(0 - u64(a));
  return static_cast<T>(a / b);
}

template <class T>
inline T remainder(T a, T b) {
  if (b == 0) return a;
  if (std::is_signed_v<T> && b == static_cast<T>(-1)) return T{0};
  return static_cast<T>(a % b);
}

template <class T>
inline T high_product(T a, T b) {
  using Wide = std::conditional_t<std::is_signed_v<T>, __int128, unsigned __int128>;
  return static_cast<T>(static_cast<Wide>(a) * b >> kBits<T>);
}

// `length` bits of x from a position on, extended by their sign if T has one.
template <class T>
inline T extracted(T x, u32 position, u32 length) {
  using U = std::make_unsigned_t<T>;
  position &= 0xff;
  length &= 0xff;
  if (length == 0) return 0;
  const u32 last = std::min(position + length, kBits<T>) - 1;
  const bool negative = std::is_signed_v<T> && (static_cast<U>(x) >> last & 1);
  const u32 inside = position < kBits<T> ? std::min(length, kBits<T> - position) : 0;
  const U mask = shifted_left<U>(1, inside) - 1;
  const U field = shifted_right<U>(x, position) & mask;
  return static_cast<T>(negative ? field | ~mask : field);
}

template <class T>  // unsigned
inline T inserted(T field, T x, u32 position, u32 length) {
  position &= 0xff;
  length &= 0xff;
  if (position >= kBits<T> || length == 0) return x;
  const T mask = static_cast<T>(shifted_left<T>(1, length) - 1) << position;
  return static_cast<T>((x & ~mask) | (field << position & mask));
}

// Saturates; NaN becomes 0. `x` is already rounded to an integer.
template <class T>
inline T to_integer(double x) {
  using Limits = std::numeric_limits<T>;
  const double above = std::ldexp(1.0, Limits::digits);
  if (x != x) return 0;
  if (x >= above) return Limits::max();
  if (x <= (std::is_signed_v<T> ? -above : 0.0)) return Limits::min();
  return static_cast<T>(x);
}

}  // namespace ptx
