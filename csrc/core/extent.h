// Loop bounds that are either compile-time constants or plain ints.
//
// The block algorithms are written once over an extent type. With Const<9> every loop is
// expanded and every index folds into an address; with int the same loops stay rolled.
#pragma once

#include "macros.h"

namespace mbf {

template <int N>
struct Const {
  MBF_INLINE constexpr operator int() const { return N; }
};

template <int A, int B>
MBF_INLINE constexpr Const<A + B> operator+(Const<A>, Const<B>) {
  return {};
}

// Zero of the same kind as an extent, so that a loop from zero to a Const is expanded.
template <int N>
MBF_INLINE constexpr Const<0> zero_like(Const<N>) {
  return {};
}
MBF_INLINE constexpr int zero_like(int) { return 0; }

template <int First, int Last, class F>
MBF_INLINE void for_each(Const<First>, Const<Last>, F f) {
  if constexpr (First < Last) {
    f(Const<First>{});
    for_each(Const<First + 1>{}, Const<Last>{}, f);
  }
}

template <class F>
MBF_INLINE void for_each(int first, int last, F f) {
  for (; first < last; ++first) f(first);
}

// Calls f(start, size) for consecutive panels of B rows or columns; the last panel may be smaller.
// The size is always a Const, so that a panel can be held in registers.
template <int B, int First, int Last, class F>
MBF_INLINE void for_panels(Const<First>, Const<Last>, F f) {
  if constexpr (First < Last) {
    constexpr int size = Last - First < B ? Last - First : B;
    f(Const<First>{}, Const<size>{});
    for_panels<B>(Const<First + size>{}, Const<Last>{}, f);
  }
}

namespace detail {
template <int B, class F>
MBF_INLINE void last_panel(int start, int size, F f) {
  if constexpr (B > 0) {
    if (size == B) {
      f(start, Const<B>{});
    } else {
      last_panel<B - 1>(start, size, f);
    }
  }
}
}  // namespace detail

template <int B, class F>
MBF_INLINE void for_panels(int first, int last, F f) {
  for (; first + B <= last; first += B) f(first, Const<B>{});
  detail::last_panel<B - 1>(first, last - first, f);
}

}  // namespace mbf
