// The part of the CUDA runtime that csrc/cuda/launch.cu calls, for g++. Every call goes to a
// function of the test: see launch_c.cpp.
#pragma once

#include <cstddef>
#include <cstdint>

enum cudaError_t : int { cudaSuccess = 0 };
using cudaStream_t = struct CUstream_st*;

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

cudaError_t cudaGetDevice(int* device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaDriverGetVersion(int* version);
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream);
cudaError_t cudaGetLastError();
const char* cudaGetErrorString(cudaError_t error);
