// A symmetric d x d matrix is kept as its lower triangle, row after row.
#pragma once

#include "macros.h"

namespace mbf {

// Elements in the triangle of a d x d matrix.
MBF_INLINE constexpr int triangle_size(int d) { return d * (d + 1) / 2; }

// Index of element (row, col), col <= row.
MBF_INLINE constexpr int triangle_index(int row, int col) { return row * (row + 1) / 2 + col; }

// The same for any i and j.
MBF_INLINE constexpr int symmetric_index(int i, int j) {
  return i < j ? triangle_index(j, i) : triangle_index(i, j);
}

}  // namespace mbf
