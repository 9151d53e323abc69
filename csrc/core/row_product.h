// C += A B for a few rows of A and a few vectors of columns of B, in registers.
#pragma once

#include "macros.h"
#include "scalar_lane.h"

namespace mbf {

// `left(row, k)` returns a scalar of A in all lanes, `right(k, column)` a vector of row k of B.
// Every vector of B is loaded once and used for R rows, every scalar of A for N vectors.
template <class V, int R, int N, class Left, class Right>
MBF_INLINE void row_product(Left left, Right right, int depth, V (&sums)[R][N]) {
  for (int k = 0; k < depth; ++k) {
    V columns[N];
    MBF_UNROLL
    for (int n = 0; n < N; ++n) columns[n] = right(k, n);
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      const V scalar = left(r, k);
      MBF_UNROLL
      for (int n = 0; n < N; ++n) sums[r][n] = sums[r][n] + scalar * columns[n];
    }
  }
}

}  // namespace mbf
