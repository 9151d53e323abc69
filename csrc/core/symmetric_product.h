// u = P m for a symmetric P given by its packed triangle.
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// Each number of P is loaded once and used twice, for (row, col) and for (col, row). Rows are taken
// kRows at a time so that u[col] is read and written once per piece rather than once per row.
template <class V, class LoadTriangle, class Dim>
MBF_INLINE void symmetric_product(LoadTriangle p, const V* m, V* u, Dim d) {
  constexpr int kRows = 4;
  for_pieces<kRows>(zero_like(d), d, [&](auto first, auto rows) MBF_INLINE_LAMBDA {
    constexpr int R = rows;
    V sum[R];
    V weight[R];
    MBF_UNROLL for (int r = 0; r < R; ++r) {
      weight[r] = m[first + r];
      sum[r] = p(triangle_index(first + r, first + r)) * weight[r];
    }
    MBF_UNROLL for (int r = 1; r < R; ++r) {
      MBF_UNROLL for (int c = 0; c < r; ++c) {
        const V value = p(triangle_index(first + r, first + c));
        sum[r] = sum[r] + value * weight[c];
        sum[c] = sum[c] + value * weight[r];
      }
    }
    for_each(zero_like(d), first, [&](auto col) MBF_INLINE_LAMBDA {
      const V m_col = m[col];
      V u_col = u[col];
      MBF_UNROLL for (int r = 0; r < R; ++r) {
        const V value = p(triangle_index(first + r, 0) + col);
        sum[r] = sum[r] + value * m_col;
        u_col = u_col + value * weight[r];
      }
      u[col] = u_col;
    });
    MBF_UNROLL for (int r = 0; r < R; ++r) u[first + r] = sum[r];
  });
}

}  // namespace mbf
