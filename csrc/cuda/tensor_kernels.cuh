// Kernels for whole tensors: absolute damping from traces, and the second pass of a rescaled step.
// Sums are in double, in an order that depends only on the tensor's size.
#pragma once

#include "natural.cuh"
#include "rescaled_move.cuh"

namespace mbf::cuda {

// Turns relative damping into absolute damping, one thread block per tensor. It is at least kLeast,
// so that a tensor whose gradients are all zero has an inverse.
__global__ void __launch_bounds__(kTensorThreads)
    damping_of_tensors(const __grid_constant__ DampingParameters p) {
  constexpr double kLeast = 1e-30;
  const DampedTensor& tensor = entries(p)[blockIdx.x];
  double trace = 0;
  for (int64_t i = threadIdx.x; i < tensor.tiles; i += kTensorThreads) {
    trace += p.job.tallies[tensor.tile + i].trace;
  }
  trace = sum_over_threads<kTensorThreads>(trace);
  if (threadIdx.x != 0) return;
  const double damping = p.job.damping == nullptr
                             ? tensor.damping
                             : p.job.damping[p.job.damping_per_tensor ? tensor.tensor : 0];
  p.job.out[tensor.tensor] = fmax(damping * trace / tensor.elements, kLeast);
}

// The factor that gives a tensor's direction the target norm, from the norms that the first pass
// has stored at its first tile. On a refresh the first thread block also stores the new target.
__device__ __forceinline__ double scale_of_tensor(const ApplyHeader& job,
                                                  const ApplySegment& segment, bool first_unit) {
  const TileNorms norms = job.norms[segment.tensor_tile];
  double target;
  if (job.refresh_targets) {
    target = sqrt(norms.adam);
    const bool first = first_unit && segment.tile == segment.tensor_tile;
    if (first && threadIdx.x == 0) job.target_norms[segment.tensor] = target;
  } else {
    target = job.target_norms[job.target_per_tensor ? segment.tensor : 0];
  }
  return norms.direction > 0 ? target / sqrt(norms.direction) : 0.0;
}

__global__ void __launch_bounds__(kTensorThreads)
    apply_directions(const __grid_constant__ ApplyParameters p) {
  const ApplyHeader& job = p.job;
  const ApplySegment& segment = entries(p)[own_segment(p)];
  const int d = job.block_size;
  const uint32_t unit = blockIdx.x - segment.first_unit;
  const uint32_t first = unit * static_cast<uint32_t>(job.unit_tiles * kTileBlocks);
  const int blocks = min(job.unit_tiles * kTileBlocks, static_cast<int>(segment.blocks - first));

  const double scale = scale_of_tensor(job, segment, unit == 0);
  const double lr = job.controls == nullptr ? job.scalars.lr : job.controls[0];
  const Move move{lr * scale, static_cast<float>(lr * job.scalars.weight_decay)};
  const float* u = job.directions + (segment.tile * kTileBlocks + first) * d;
  const NaturalView view =
      natural_view(p, segment.params, segment.natural[0], segment.block + first, blocks);
  with_format(view.format, [&](auto* type) {
    using Stored = std::remove_pointer_t<decltype(type)>;
    if (view.strides == nullptr) {
      Stored* w = static_cast<Stored*>(view.data) + view.block * d;
      for (int i = threadIdx.x; i < blocks * d; i += kTensorThreads) {
        w[i] = narrow<Stored>(move(widen(w[i]), u[i]));
      }
    } else {
      // Neighbouring threads take neighbouring blocks, which are contiguous in channels_last.
      for (int b = threadIdx.x; b < blocks; b += kTensorThreads) {
        Stored* w = static_cast<Stored*>(view.data) + strided_block(view, b);
        for (int e = 0; e < d; ++e, w += view.strides->element_stride) {
          *w = narrow<Stored>(move(widen(*w), u[b * d + e]));
        }
      }
    }
  });
}

}  // namespace mbf::cuda
