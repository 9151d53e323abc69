// The inverse of a small symmetric positive definite matrix, in place on its packed triangle.
//
// Square-root-free Cholesky, A = L D L^T with L unit lower triangular, in three phases of d^3/6
// multiply-adds:
//
//   1. factor    L and the reciprocal pivots r = 1 / D, one panel of columns after the other
//   2. invert    X = L^-1, one panel of rows after the other
//   3. multiply  A^-1 = X^T diag(r) X, one panel of rows after the other
//
// Cost and stability are those of Cholesky. The only long-latency operation is one division per
// pivot: all lanes reach a pivot together, so no other work could hide the latency of a square
// root.
//
// A panel is p = kPanelWidth neighbouring rows or columns; a patch is the p x p elements where two
// panels cross. Every phase computes one patch of the result at a time in registers, as a product
// of two panels (2 p loads for p^2 multiply-adds) and a small product or solve with a triangular
// patch. With p = 3 the 9 accumulators and 4 operands fit the 16 registers of AVX2; p = 4 spills
// there. Every phase overwrites only elements it no longer needs, so one triangle is enough.
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

constexpr int kPanelWidth = 3;

// The memory of one inverse. Every element is a lane vector.
template <class V>
struct InverseWorkspace {
  V* triangle;    // d(d+1)/2: the factor, then its inverse, then the result
  V* reciprocal;  // d: 1 / pivot
  V* panel;       // kPanelWidth * d: the current panel, scaled by the pivots or their reciprocals
};

namespace detail {

// The diagonal patch of L in the columns from `first` on: subtracts the product of the earlier
// columns and factors the C x C remainder. Leaves D_k L_jk, k < first, in w.panel for the patches
// below it.
template <int C, class V, class Load, class First, class Dim>
MBF_INLINE void factor_diagonal(InverseWorkspace<V> w, Load load, First first, Dim d) {
  V acc[C][C];
  MBF_UNROLL
  for (int r = 0; r < C; ++r) {
    MBF_UNROLL
    for (int c = 0; c <= r; ++c) acc[r][c] = load(first + r, first + c);
  }
  const V* rows = w.triangle + triangle_index(first, 0);
  for_each(zero_like(d), first, [&](auto k) MBF_INLINE_LAMBDA {
    V l[C];
    V scaled[C];
    const V pivot = w.triangle[triangle_index(k, k)];
    MBF_UNROLL
    for (int r = 0; r < C; ++r) {
      l[r] = rows[triangle_index(first + r, 0) - triangle_index(first, 0) + k];
      scaled[r] = l[r] * pivot;
      w.panel[r * d + k] = scaled[r];
    }
    MBF_UNROLL
    for (int c = 0; c < C; ++c) {
      MBF_UNROLL
      for (int r = c; r < C; ++r) acc[r][c] = acc[r][c] - l[r] * scaled[c];
    }
  });
  MBF_UNROLL
  for (int c = 0; c < C; ++c) {
    // The pivot itself stays on the diagonal: later panels are scaled by it.
    w.triangle[triangle_index(first + c, first + c)] = acc[c][c];
    const V inverse_pivot = reciprocal(acc[c][c]);
    w.reciprocal[first + c] = inverse_pivot;
    V l[C];
    MBF_UNROLL
    for (int r = c + 1; r < C; ++r) l[r] = acc[r][c] * inverse_pivot;
    MBF_UNROLL
    for (int r = c + 1; r < C; ++r) {
      MBF_UNROLL
      for (int q = c + 1; q <= r; ++q) acc[r][q] = acc[r][q] - l[r] * acc[q][c];
      w.triangle[triangle_index(first + r, first + c)] = l[r];
    }
  }
}

// The patch of L whose first element is (row, col), below the diagonal patch of its columns.
template <int R, int C, class V, class Load, class Row, class Col, class Dim>
MBF_INLINE void factor_patch(InverseWorkspace<V> w, Load load, Row row, Col col, Dim d) {
  V acc[R][C];
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    MBF_UNROLL
    for (int c = 0; c < C; ++c) acc[r][c] = load(row + r, col + c);
  }
  const V* rows = w.triangle + triangle_index(row, 0);
  for_each(zero_like(d), col, [&](auto k) MBF_INLINE_LAMBDA {
    V l[R];
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      l[r] = rows[triangle_index(row + r, 0) - triangle_index(row, 0) + k];
    }
    MBF_UNROLL
    for (int c = 0; c < C; ++c) {
      const V scaled = w.panel[c * d + k];
      MBF_UNROLL
      for (int r = 0; r < R; ++r) acc[r][c] = acc[r][c] - l[r] * scaled;
    }
  });
  MBF_UNROLL
  for (int c = 1; c < C; ++c) {
    MBF_UNROLL
    for (int k = 0; k < c; ++k) {
      const V l = w.triangle[triangle_index(col + c, col + k)];
      MBF_UNROLL
      for (int r = 0; r < R; ++r) acc[r][c] = acc[r][c] - acc[r][k] * l;
    }
  }
  MBF_UNROLL
  for (int c = 0; c < C; ++c) {
    const V inverse_pivot = w.reciprocal[col + c];
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      w.triangle[triangle_index(row + r, col + c)] = acc[r][c] * inverse_pivot;
    }
  }
}

// The patch of X whose first element is (row, col), left of the diagonal:
// -(L_row,row)^-1 (sum of L X).
template <int R, int C, class V, class Row, class Col>
MBF_INLINE void invert_patch(V* a, Row row, Col col) {
  V acc[R][C];
  // The diagonal patch of X in these columns is unit lower triangular; its ones are not stored.
  MBF_UNROLL
  for (int c = 0; c < C; ++c) {
    MBF_UNROLL
    for (int r = 0; r < R; ++r) acc[r][c] = a[triangle_index(row + r, col + c)];
    MBF_UNROLL
    for (int k = c + 1; k < C; ++k) {
      const V x = a[triangle_index(col + k, col + c)];
      MBF_UNROLL
      for (int r = 0; r < R; ++r) {
        acc[r][c] = acc[r][c] + a[triangle_index(row + r, col + k)] * x;
      }
    }
  }
  const auto below = col + Const<C>{};
  const V* rows = a + triangle_index(row, 0);
  const V* x_row = a + triangle_index(below, 0) + col;
  for_each(below, row, [&](auto k) MBF_INLINE_LAMBDA {
    V l[R];
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      l[r] = rows[triangle_index(row + r, 0) - triangle_index(row, 0) + k];
    }
    MBF_UNROLL
    for (int c = 0; c < C; ++c) {
      const V x = x_row[c];
      MBF_UNROLL
      for (int r = 0; r < R; ++r) acc[r][c] = acc[r][c] + l[r] * x;
    }
    x_row += k + 1;
  });
  MBF_UNROLL
  for (int r = 1; r < R; ++r) {
    MBF_UNROLL
    for (int k = 0; k < r; ++k) {
      const V l = a[triangle_index(row + r, row + k)];
      MBF_UNROLL
      for (int c = 0; c < C; ++c) acc[r][c] = acc[r][c] - l * acc[k][c];
    }
  }
  const V zero = broadcast<V>(0);
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    MBF_UNROLL
    for (int c = 0; c < C; ++c) {
      a[triangle_index(row + r, col + c)] = zero - acc[r][c];
    }
  }
}

// The diagonal patch of X, which is unit lower triangular.
template <int R, class V, class Row>
MBF_INLINE void invert_diagonal(V* a, Row row) {
  const V zero = broadcast<V>(0);
  V x[R][R];
  MBF_UNROLL
  for (int r = 1; r < R; ++r) {
    MBF_UNROLL
    for (int c = 0; c < r; ++c) {
      V sum = a[triangle_index(row + r, row + c)];
      MBF_UNROLL
      for (int k = c + 1; k < r; ++k) {
        sum = sum + a[triangle_index(row + r, row + k)] * x[k][c];
      }
      x[r][c] = zero - sum;
    }
  }
  MBF_UNROLL
  for (int r = 1; r < R; ++r) {
    MBF_UNROLL
    for (int c = 0; c < r; ++c) a[triangle_index(row + r, row + c)] = x[r][c];
  }
}

// The diagonal patch of the product. It stays in `acc` because the patches left of it still need
// the X in its place. Leaves r_k X_k,row, k >= row, in w.panel for them.
template <int R, class V, class Row, class Dim>
MBF_INLINE void multiply_diagonal(InverseWorkspace<V> w, V (&acc)[R][R], Row row, Dim d) {
  const V* a = w.triangle;
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    const V inverse_pivot = w.reciprocal[row + r];
    acc[r][r] = inverse_pivot;
    MBF_UNROLL
    for (int c = 0; c < r; ++c) {
      acc[r][c] = inverse_pivot * a[triangle_index(row + r, row + c)];
    }
  }
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    MBF_UNROLL
    for (int k = r + 1; k < R; ++k) {
      const V scaled = w.reciprocal[row + k] * a[triangle_index(row + k, row + r)];
      w.panel[r * d + row + k] = scaled;
      MBF_UNROLL
      for (int c = 0; c <= r; ++c) {
        acc[r][c] = acc[r][c] + scaled * a[triangle_index(row + k, row + c)];
      }
    }
  }
  const auto below = row + Const<R>{};
  const V* x_row = a + triangle_index(below, 0) + row;
  for_each(below, d, [&](auto k) MBF_INLINE_LAMBDA {
    V x[R];
    V scaled[R];
    const V inverse_pivot = w.reciprocal[k];
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      x[r] = x_row[r];
      scaled[r] = inverse_pivot * x[r];
      w.panel[r * d + k] = scaled[r];
    }
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      MBF_UNROLL
      for (int c = 0; c <= r; ++c) acc[r][c] = acc[r][c] + scaled[r] * x[c];
    }
    x_row += k + 1;
  });
}

// The patch of the product whose first element is (row, col), left of the diagonal.
template <int R, int C, class V, class Row, class Col, class Dim>
MBF_INLINE void multiply_patch(InverseWorkspace<V> w, Row row, Col col, Dim d) {
  V* a = w.triangle;
  V acc[R][C];
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    const V inverse_pivot = w.reciprocal[row + r];
    MBF_UNROLL
    for (int c = 0; c < C; ++c) {
      acc[r][c] = inverse_pivot * a[triangle_index(row + r, col + c)];
    }
    MBF_UNROLL
    for (int k = r + 1; k < R; ++k) {
      const V scaled = w.panel[r * d + row + k];
      MBF_UNROLL
      for (int c = 0; c < C; ++c) {
        acc[r][c] = acc[r][c] + scaled * a[triangle_index(row + k, col + c)];
      }
    }
  }
  const auto below = row + Const<R>{};
  const V* x_row = a + triangle_index(below, 0) + col;
  for_each(below, d, [&](auto k) MBF_INLINE_LAMBDA {
    V x[C];
    MBF_UNROLL
    for (int c = 0; c < C; ++c) x[c] = x_row[c];
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      const V scaled = w.panel[r * d + k];
      MBF_UNROLL
      for (int c = 0; c < C; ++c) acc[r][c] = acc[r][c] + scaled * x[c];
    }
    x_row += k + 1;
  });
  MBF_UNROLL
  for (int r = 0; r < R; ++r) {
    MBF_UNROLL
    for (int c = 0; c < C; ++c) a[triangle_index(row + r, col + c)] = acc[r][c];
  }
}

}  // namespace detail

// Leaves the packed inverse of the matrix in w.triangle and the reciprocal pivots in w.reciprocal.
// `load(row, col)` returns an element of the matrix. It is called once per element, before the same
// element of w.triangle is written, so it may read w.triangle itself. Never fails; usable() tells
// whether the result is an inverse.
template <class V, class Load, class Dim>
MBF_INLINE void spd_inverse(InverseWorkspace<V> w, Load load, Dim d) {
  for_panels<kPanelWidth>(zero_like(d), d, [&](auto col, auto cols) MBF_INLINE_LAMBDA {
    constexpr int C = cols;
    detail::factor_diagonal<C>(w, load, col, d);
    for_panels<kPanelWidth>(col + cols, d, [&](auto row, auto rows) MBF_INLINE_LAMBDA {
      constexpr int R = rows;
      detail::factor_patch<R, C>(w, load, row, col, d);
    });
  });
  for_panels<kPanelWidth>(zero_like(d), d, [&](auto row, auto rows) MBF_INLINE_LAMBDA {
    constexpr int R = rows;
    for_panels<kPanelWidth>(zero_like(d), row, [&](auto col, auto cols) MBF_INLINE_LAMBDA {
      constexpr int C = cols;
      detail::invert_patch<R, C>(w.triangle, row, col);
    });
    detail::invert_diagonal<R>(w.triangle, row);
  });
  for_panels<kPanelWidth>(zero_like(d), d, [&](auto row, auto rows) MBF_INLINE_LAMBDA {
    constexpr int R = rows;
    V acc[R][R];
    detail::multiply_diagonal<R>(w, acc, row, d);
    for_panels<kPanelWidth>(zero_like(d), row, [&](auto col, auto cols) MBF_INLINE_LAMBDA {
      constexpr int C = cols;
      detail::multiply_patch<R, C>(w, row, col, d);
    });
    MBF_UNROLL
    for (int r = 0; r < R; ++r) {
      MBF_UNROLL
      for (int c = 0; c <= r; ++c) {
        w.triangle[triangle_index(row + r, row + c)] = acc[r][c];
      }
    }
  });
}

// After spd_inverse: true in the lanes whose result is certainly an inverse with all elements below
// `limit`, the least positive value that overflows the format it will be stored in. A negative or
// infinite pivot has a reciprocal that is not positive. Everything else that can go wrong (a NaN, a
// pivot so small that its reciprocal overflows, an inverse too large for the format) shows in the
// trace of the result, which becomes NaN or too large: the diagonal bounds all other elements. The
// trace may also reach `limit` when no element does; failed_pivot then finds no failure.
template <class V, class Dim>
MBF_INLINE auto usable(InverseWorkspace<V> w, V limit, Dim d) {
  V trace = w.triangle[0];
  auto all = positive(w.reciprocal[0]);
  for_each(zero_like(d) + Const<1>{}, d, [&](auto j) MBF_INLINE_LAMBDA {
    trace = trace + w.triangle[triangle_index(j, j)];
    all = all & positive(w.reciprocal[j]);
  });
  return all & positive(trace) & less(trace, limit);
}

// For one lane: 0, or the 1-based index of the pivot that failed. `reciprocal(j)` and `diagonal(j)`
// return the lane's values. The reciprocals are checked first, because one bad pivot spoils the
// diagonal at every smaller index.
template <class T, class Reciprocal, class Diagonal>
MBF_INLINE int failed_pivot(Reciprocal reciprocal, Diagonal diagonal, T limit, int d) {
  for (int j = 0; j < d; ++j) {
    const T r = reciprocal(j);
    if (!(positive(r) && less(r, limit))) return j + 1;
  }
  for (int j = 0; j < d; ++j) {
    const T x = diagonal(j);
    if (!(positive(x) && less(x, limit))) return j + 1;
  }
  return 0;
}

}  // namespace mbf
