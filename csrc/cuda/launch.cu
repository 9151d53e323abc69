#include <cuda_runtime.h>

#include <stdexcept>
#include <string>

#include "kernels.h"
#include "launch.h"

namespace mbf::cuda {
namespace {

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device != before_) check(cudaSetDevice(device), "cudaSetDevice");
  }
  ~DeviceGuard() { cudaSetDevice(before_); }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
};

// The compiled instance for a block size or a kind of pair or team; plan.cpp asks for no other.
template <int D = 1>
const void* find_thread_kernel(Kernel kernel, int block_size) {
  if constexpr (D <= kMaxThreadBlock) {
    return block_size == D ? thread_kernel<D>(kernel)
                           : find_thread_kernel<D + 1>(kernel, block_size);
  } else {
    return nullptr;
  }
}

template <int Kind = 0>
const void* find_pair_kernel(Kernel kernel, int kind) {
  if constexpr (Kind < kPairKinds) {
    return kind == Kind ? pair_kernel<Kind>(kernel) : find_pair_kernel<Kind + 1>(kernel, kind);
  } else {
    return nullptr;
  }
}

template <int Kind = 0>
const void* find_team_kernel(Kernel kernel, int kind) {
  if constexpr (Kind < kTeamKinds) {
    return kind == Kind ? team_kernel<Kind>(kernel) : find_team_kernel<Kind + 1>(kernel, kind);
  } else {
    return nullptr;
  }
}

const void* find_kernel(const Launch& launch) {
  if (launch.kernel == Kernel::Damping || launch.kernel == Kernel::Apply) {
    return tensor_kernel(launch.kernel);
  }
  if (launch.kernel >= Kernel::SharedStep) return shared_kernel(launch.kernel);
  if (launch.block_size <= kMaxThreadBlock) {
    return find_thread_kernel(launch.kernel, launch.block_size);
  }
  if (launch.kernel == Kernel::Step || launch.kernel == Kernel::Run) {
    return find_pair_kernel(launch.kernel, pair_kind(launch.block_size));
  }
  return find_team_kernel(launch.kernel, team_kind(launch.block_size));
}

}  // namespace

void launch(const std::vector<Launch>& launches, int device, void* stream) {
  const DeviceGuard guard(device);
  if (launches.empty()) return;
  for (const Launch& launch : launches) {
    void* arguments[] = {const_cast<unsigned char*>(launch.parameters.data())};
    check(cudaLaunchKernel(find_kernel(launch), launch.grid, launch.threads, arguments,
                           launch.shared_bytes, static_cast<cudaStream_t>(stream)),
          "launch of a CUDA kernel");
  }
  check(cudaGetLastError(), "CUDA kernels");
}

}  // namespace mbf::cuda
