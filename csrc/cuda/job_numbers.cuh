// The numbers of a job, from the host or from the device.
#pragma once

#include "device.cuh"

namespace mbf::cuda {

struct StepNumbers {
  float lr, momentum_correction;
  bool update, invert;
};

// controls, where given, replace what the host said; the ranges of tiles stay the host's.
__device__ __forceinline__ StepNumbers step_numbers(const RunHeader& job) {
  StepNumbers numbers{job.lr, job.momentum_correction, !job.update.empty(), !job.invert.empty()};
  if (job.controls != nullptr) {
    numbers.lr = static_cast<float>(job.controls[0]);
    numbers.momentum_correction = static_cast<float>(job.controls[1]);
    numbers.update = numbers.update && job.controls[2] != 0.0;
    numbers.invert = numbers.invert && job.controls[3] != 0.0;
  }
  return numbers;
}

__device__ __forceinline__ float damping_of(const RunHeader& job, const Segment& segment) {
  if (job.damping == nullptr) return static_cast<float>(segment.damping);
  return static_cast<float>(job.damping[job.damping_per_tensor ? segment.tensor : 0]);
}

__device__ __forceinline__ double updated_weight(const RunHeader& job, double weight) {
  return job.beta * weight + (1.0 - job.beta);
}

// What G is multiplied by to lose its bias. Without a weight G is zero.
__device__ __forceinline__ float without_bias(double weight) {
  return weight > 0 ? 1.0f / static_cast<float>(weight) : 1.0f;
}

}  // namespace mbf::cuda
