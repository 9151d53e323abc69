// The inverse of a symmetric positive definite matrix small enough to stay in registers.
//
// Symmetric Gauss-Jordan elimination, one sweep a pivot, in place on the packed triangle:
//
//   r = 1 / a_kk;   a_ij <- a_ij - a_ik r a_jk   (i, j != k);   a_ik <- a_ik r;   a_kk <- -r
//
// After the last pivot the triangle holds -A^-1. The d^3/2 multiply-adds are as many as those of
// the three passes of spd_inverse.h and the pivots are the same numbers, but two numbers are enough
// beside the triangle, and all multiply-adds of a pivot are independent: what a GPU thread wants.
// It passes over the whole triangle d times, so lanes whose triangle is in memory are better served
// by spd_inverse.h.
//
// On positive definite matrices it needs no pivoting: what is swept is the inverse of a leading
// block, to which every further pivot adds a positive semidefinite matrix, and what is not is a
// Schur complement. Neither outgrows A^-1 or A (Peters and Wilkinson, CACM 18, 1975).
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// `on_pivot(k, r)` sees the reciprocal of every pivot: the first that is not a positive finite
// number means that there is no inverse. Pivot k depends on rows 0 .. k of the lower triangle only,
// up to and including the first bad one.
template <class V, int D, class OnPivot>
MBF_INLINE void spd_sweep(V (&a)[D * (D + 1) / 2], Const<D>, OnPivot on_pivot) {
  const V zero = broadcast<V>(0);
  for_each(Const<0>{}, Const<D>{}, [&](auto pivot) MBF_INLINE_LAMBDA {
    constexpr int k = pivot;
    const V r = reciprocal(a[triangle_index(k, k)]);
    on_pivot(k, r);
    // Row i needs the pivot's column up to i: from the last row on, each can be scaled in place.
    MBF_UNROLL
    for (int i = D - 1; i >= 0; --i) {
      if (i == k) continue;
      const V scaled = a[symmetric_index(i, k)] * r;
      MBF_UNROLL
      for (int j = 0; j <= i; ++j) {
        if (j == k) continue;
        V& x = a[triangle_index(i, j)];
        x = x - scaled * a[symmetric_index(j, k)];
      }
      a[symmetric_index(i, k)] = scaled;
    }
    a[triangle_index(k, k)] = zero - r;
  });
}

}  // namespace mbf
