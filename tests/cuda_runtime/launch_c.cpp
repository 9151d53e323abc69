// A C interface to csrc/cuda/launch.cu, the kernels that it finds, and the CUDA runtime that it
// calls: every call goes to a function pointer that the test sets.
#include <cuda_runtime.h>

#include <exception>
#include <string>

#include "../../csrc/cuda/kernels.h"
#include "../../csrc/cuda/shared_plan.h"

using namespace mbf;
using namespace mbf::cuda;

extern "C" {

// A kernel: which one, for which block size or kind of team, and the size of its parameters.
struct KernelView {
  const char* family;
  int32_t index, kernel;
  uint64_t parameter_bytes;
};

struct RuntimeCalls {
  int (*get_device)(int* device);
  int (*set_device)(int device);
  int (*driver_version)(int* version);
  int (*launch)(const KernelView* kernel, const uint32_t* grid, const uint32_t* block,
                const void* parameters, uint64_t shared_bytes, uint64_t stream);
  int (*last_error)();
  const char* (*error_string)(int error);
};
}

namespace {

RuntimeCalls calls;
constexpr int kKernels = static_cast<int>(Kernel::SharedAverage) + 1;

constexpr uint64_t parameter_bytes(Kernel kernel) {
  switch (kernel) {
    case Kernel::Step:
    case Kernel::Run:
    case Kernel::Refresh: return sizeof(RunParameters);
    case Kernel::Damping: return sizeof(DampingParameters);
    case Kernel::Apply: return sizeof(ApplyParameters);
    case Kernel::Dense: return sizeof(DenseParameters);
    case Kernel::SharedStep:
    case Kernel::SharedFirst:
    case Kernel::SharedApply: return sizeof(SharedStepParameters);
    case Kernel::SharedScale: return sizeof(SharedScaleParameters);
    case Kernel::SharedUpdate: return sizeof(SharedUpdateParameters);
    case Kernel::SharedAverage: return sizeof(SharedAverageParameters);
  }
  return 0;
}

// The address of a view stands for the kernel.
template <int Family, int Index>
const void* view_of(const char* family, Kernel kernel) {
  static KernelView views[kKernels];
  KernelView& view = views[static_cast<int>(kernel)];
  view = {family, Index, static_cast<int32_t>(kernel), parameter_bytes(kernel)};
  return &view;
}

}  // namespace

namespace mbf::cuda {

template <int BlockSize>
const void* thread_kernel(Kernel kernel) {
  return view_of<0, BlockSize>("thread", kernel);
}
template <int Kind>
const void* pair_kernel(Kernel kernel) {
  return view_of<4, Kind>("pair", kernel);
}
template <int Kind>
const void* team_kernel(Kernel kernel) {
  return view_of<1, Kind>("team", kernel);
}
const void* tensor_kernel(Kernel kernel) { return view_of<2, 0>("tensor", kernel); }
const void* shared_kernel(Kernel kernel) { return view_of<3, 0>("shared", kernel); }

}  // namespace mbf::cuda

// Here, where it finds the definitions of the templates.
#include "../../csrc/cuda/launch.cu"

cudaError_t cudaGetDevice(int* device) { return cudaError_t(calls.get_device(device)); }
cudaError_t cudaSetDevice(int device) { return cudaError_t(calls.set_device(device)); }
cudaError_t cudaDriverGetVersion(int* version) {
  return cudaError_t(calls.driver_version(version));
}
cudaError_t cudaLaunchKernel(const void* kernel, dim3 grid, dim3 block, void** arguments,
                             size_t shared_bytes, cudaStream_t stream) {
  const uint32_t sizes[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
  return cudaError_t(calls.launch(static_cast<const KernelView*>(kernel), sizes, sizes + 3,
                                  arguments[0], shared_bytes, reinterpret_cast<uint64_t>(stream)));
}
cudaError_t cudaGetLastError() { return cudaError_t(calls.last_error()); }
const char* cudaGetErrorString(cudaError_t error) { return calls.error_string(error); }

extern "C" {

void set_runtime(const RuntimeCalls* given) { calls = *given; }

// Null, or what was thrown; it lives until the next call.
const char* run_launches(const std::vector<Launch>* launches, int device, uint64_t stream) {
  static std::string message;
  try {
    launch(*launches, device, reinterpret_cast<void*>(stream));
    return nullptr;
  } catch (const std::exception& error) {
    message = error.what();
    return message.c_str();
  }
}
}
