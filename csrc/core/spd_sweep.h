// The inverse of a symmetric positive definite matrix small enough to stay in registers.
//
// Symmetric Gauss-Jordan elimination, one sweep per pivot, in place on the packed triangle:
//
//   r = 1 / a_kk;   a_ij <- a_ij - a_ik r a_jk   (i, j != k);   a_ik <- a_ik r;   a_kk <- -r
//
// After the last pivot the triangle holds -A^-1. The sweep takes as many multiply-adds as
// spd_inverse.h, d^3/2, and has the same pivots. It suits a GPU thread: it needs only two values
// beside the triangle, and all multiply-adds of a pivot are independent. But it walks the whole
// triangle d times, so spd_inverse.h is better where the triangle is in memory.
//
// A positive definite matrix needs no pivoting. The swept rows and columns hold the inverse of a
// leading submatrix, to which every further pivot adds a positive semidefinite matrix; the others
// hold a Schur complement. Neither outgrows A^-1 or A (Peters and Wilkinson, CACM 18, 1975).
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// Calls on_pivot(k, r) with the reciprocal r of every pivot k. If one is not positive and finite,
// there is no inverse. Up to and including the first such pivot, a pivot depends only on its own
// row of the lower triangle and the rows above.
template <class V, int D, class OnPivot>
MBF_INLINE void spd_sweep(V (&a)[D * (D + 1) / 2], Const<D>, OnPivot on_pivot) {
  const V zero = broadcast<V>(0);
  for_each(Const<0>{}, Const<D>{}, [&](auto pivot) MBF_INLINE_LAMBDA {
    constexpr int k = pivot;
    const V r = reciprocal(a[triangle_index(k, k)]);
    on_pivot(k, r);
    // Row i reads the pivot's column at rows 0 .. i. From the last row upwards, the column can thus
    // be scaled in place.
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
