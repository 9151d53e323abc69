// How the second pass of a rescaled step moves a parameter.
#pragma once

namespace mbf::cuda {

// W <- W - (rate u + decay W). Where a direction is so small that the factor which rescales it does
// not fit float32, it is multiplied in double.
struct Move {
  double rate;
  float decay;
  __device__ __forceinline__ float operator()(float w, float u) const {
    const float change = fabs(rate) < 1e30 ? static_cast<float>(rate) * u
                                           : static_cast<float>(rate * static_cast<double>(u));
    return w - (change + decay * w);
  }
};

}  // namespace mbf::cuda
