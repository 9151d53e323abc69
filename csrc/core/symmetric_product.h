// u = P m for a symmetric P given by its packed triangle.
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// Each element of P is loaded once and used twice, for (row, col) and for (col, row). P is read
// strictly in the order it is stored: the product is bound by the bytes of P, and any other order
// (such as several rows at a time, which reads u less often) defeats the hardware's prefetching.
// `after_row()` is called after every row, where other memory-bound work overlaps best.
template <class V, class LoadTriangle, class Dim, class AfterRow>
MBF_INLINE void symmetric_product(LoadTriangle p, const V* m, V* u, Dim d, AfterRow after_row) {
  for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
    const V m_row = m[row];
    const int start = triangle_index(row, 0);
    V sum = broadcast<V>(0);
    for_each(zero_like(d), row, [&](auto col) MBF_INLINE_LAMBDA {
      const V value = p(start + col);
      sum = sum + value * m[col];
      u[col] = u[col] + value * m_row;
    });
    u[row] = sum + p(start + row) * m_row;
    after_row();
  });
}

template <class V, class LoadTriangle, class Dim>
MBF_INLINE void symmetric_product(LoadTriangle p, const V* m, V* u, Dim d) {
  symmetric_product(p, m, u, d, []() MBF_INLINE_LAMBDA {});
}

}  // namespace mbf
