// G <- beta * G + (1 - beta) * v v^T on the packed triangle.
#pragma once

#include "extent.h"
#include "scalar_lane.h"
#include "triangle.h"

namespace mbf {

// `triangle(i)` returns a slot with load() and store(V) for element i of the packed triangle;
// `v[e]` is element e of the vector. With one multiply and one fused multiply-add per element the
// update is bound by the bytes of G, so the vector is simply read from cache again for every row.
template <class V, class Triangle, class Vector, class Dim>
MBF_INLINE void rank_one_ema(Triangle triangle, Vector v, V beta, V one_minus_beta, Dim d) {
  for_each(zero_like(d), d, [&](auto row) MBF_INLINE_LAMBDA {
    const V scaled = one_minus_beta * v[row];
    const int start = triangle_index(row, 0);
    for_each(zero_like(d), row + Const<1>{}, [&](auto col) MBF_INLINE_LAMBDA {
      auto slot = triangle(start + col);
      slot.store(beta * slot.load() + scaled * v[col]);
    });
  });
}

}  // namespace mbf
