// An inverse P rounded to bfloat16 such that it stays positive definite.
//
// If every element were rounded to nearest, an ill-conditioned P would become indefinite, and P M
// could point uphill. So elements off the diagonal are rounded to nearest, with errors E_ij, and
// the diagonal is raised by enough to outweigh them. With s_i^2 = P_ii the scaled errors
// e_ij = E_ij / (s_i s_j) form a symmetric matrix with a zero diagonal. Its eigenvalues sum to zero
// and their squares to |e|^2, so none of them is below -t, where
//
//   t^2 = (d - 1) / d |e|^2 = 2 (d - 1) / d (sum over i > j of e_ij^2).
//
// Hence S (e + t I) S, with S = diag(s), has no negative eigenvalue. What is stored is
//
//   Q_ij = P_ij rounded to nearest, and Q_ii = P_ii + t s_i^2 rounded up,
//
// so that Q - P has none either. Since |E_ij| <= 2^-8 |P_ij|, t is at most (d - 1) / 256.
//
// P itself is a sum of products X^T R X, and exactly such a sum would be positive definite. Float32
// arithmetic changes its elements by at most (d + 2) eps / 2 s_i s_j, which `t` covers as well.
// A P whose elements off the diagonal all have the format already is stored as it is.
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// The diagonal of an inverse that is stored in bfloat16 must be below this power of two: `t` is
// less than one in the sizes that have kernels, so that no sum overflows.
constexpr float kBFloat16InverseLimit = 0x1p127f;

// The least s_i^2, so that a subnormal P_ii does not have an infinite reciprocal root.
constexpr float kLeastScale = 0x1p-126f;

// 1 / s_i, to within 2^-9.
template <class V>
MBF_INLINE V reciprocal_scale(V diagonal) {
  return rough_reciprocal_root(diagonal + broadcast<V>(kLeastScale));
}

// e_ij^2 from an element, the same element rounded, and the reciprocal scales of row and column.
template <class V>
MBF_INLINE V scaled_square(V element, V rounded, V row_scale, V col_scale) {
  const V e = (rounded - element) * row_scale * col_scale;
  return e * e;
}

// `t`, from the sum of e_ij^2 over one triangle. The factor 1 + 2^-6 covers the errors of all rough
// roots. Exact ones, and divisions, have slow paths on a GPU that would take registers.
template <class V>
MBF_INLINE V diagonal_raise(V squares, int d) {
  const V over_root_d = rough_reciprocal_root(broadcast<V>(d));
  const V bound = squares * broadcast<V>(2 * (d - 1)) * over_root_d * over_root_d;
  const V root = bound * rough_reciprocal_root(bound + broadcast<V>(kLeastScale));
  const V arithmetic = broadcast<V>(0x1p-24f * ((d + 2) * (d + 2)));
  return root * broadcast<V>(1 + 0x1p-6f) + at_most(squares * broadcast<V>(0x1p126f), arithmetic);
}

template <class V>
MBF_INLINE V raised(V diagonal, V raise) {
  return bfloat16_above(diagonal + raise * (diagonal + broadcast<V>(kLeastScale)));
}

// Calls store(i, x) with the elements x, values of bfloat16, of the rounded triangle. `load(i)`
// returns an element of P; elements of the diagonal are stored last. `scale(row)` returns
// reciprocal_scale of P_row,row.
template <class V, class Load, class Scale, class Store, class Dim>
MBF_INLINE void round_inverse(Load load, Scale scale, Store store, Dim d) {
  V squares = broadcast<V>(0);
  for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
    const V row_scale = scale(row);
    V of_row = broadcast<V>(0);
    for_each(zero_like(d), row, [&](auto col) MBF_INLINE_LAMBDA {
      const int i = triangle_index(row, col);
      const V element = load(i);
      const V rounded = nearest_bfloat16(element);
      of_row = of_row + scaled_square(element, rounded, row_scale, scale(col));
      store(i, rounded);
    });
    squares = squares + of_row;
  });
  const V raise = diagonal_raise(squares, d);
  for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
    const int i = triangle_index(row, row);
    store(i, raised(load(i), raise));
  });
}

}  // namespace mbf
