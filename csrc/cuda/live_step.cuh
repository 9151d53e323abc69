// What a step does: its scalars, and whether it updates and inverts.
#pragma once

#include "device.cuh"

namespace mbf::cuda {

struct LiveStep {
  StepScalars<float> scalars;
  bool update, invert;
};

// The job's own values, unless controls on the device replace them. The tile ranges are always
// those of the job.
__device__ __forceinline__ LiveStep live_step(const RunHeader& job) {
  LiveStep live{job.scalars, !job.update.empty(), !job.invert.empty()};
  if (job.controls != nullptr) {
    live.scalars.lr = static_cast<float>(job.controls[0]);
    live.scalars.momentum_correction = static_cast<float>(job.controls[1]);
    live.update = live.update && job.controls[2] != 0.0;
    live.invert = live.invert && job.controls[3] != 0.0;
  }
  return live;
}

__device__ __forceinline__ float damping_of(const RunHeader& job, const Segment& segment) {
  if (job.damping == nullptr) return static_cast<float>(segment.damping);
  return static_cast<float>(job.damping[job.damping_per_tensor ? segment.tensor : 0]);
}

__device__ __forceinline__ double updated_weight(const RunHeader& job, double weight) {
  return job.beta * weight + (1.0 - job.beta);
}

// The factor that removes the bias of G. Where the weight is zero, G is zero.
__device__ __forceinline__ float without_bias(double weight) {
  return weight > 0 ? 1.0f / static_cast<float>(weight) : 1.0f;
}

}  // namespace mbf::cuda
