// The entry points of one instruction set for both precisions.
#pragma once

namespace mbf {

template <class Points>
struct Precisions {
  Points f32;
  Points f64;

  const Points& of(bool float64) const { return float64 ? f64 : f32; }
};

}  // namespace mbf
