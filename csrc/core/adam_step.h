// The squared norm of Adam's step for one block, from its momentum and the diagonal of its
// statistics.
#pragma once

#include "extent.h"
#include "scalar_lane.h"

namespace mbf {

// The squared norm of clip(a m / (sqrt(b v) + 1e-8), -1, 1), where `v(e)` returns element e of the
// diagonal of G. It is NaN if the block has a NaN.
template <class V, class Diagonal, class Dim>
MBF_INLINE V clipped_adam_square(Diagonal v, const V* m, V a, V b, Dim d) {
  const V epsilon = broadcast<V>(1e-8);
  const V one = broadcast<V>(1);
  V sum = broadcast<V>(0);
  for_each(zero_like(d), d, [&](auto e) MBF_INLINE_LAMBDA {
    const V x = a * m[e] * reciprocal(square_root(b * v(e)) + epsilon);
    sum = sum + at_most(x * x, one);
  });
  return sum;
}

}  // namespace mbf
