#include <cuda_runtime.h>

#include <atomic>
#include <stdexcept>
#include <string>

#include "kernels.h"
#include "launch.h"

namespace mbf::cuda {
namespace {

// Parameters of more than 4 KB need a driver for this version of CUDA.
constexpr int kLeastDriver = 12010;

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  cudaGetLastError();  // the caller hears of it now, so the next call of the runtime must not
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}

std::string version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

void check_driver() {
  static std::atomic<bool> checked = false;
  if (checked) return;
  int version = 0;
  check(cudaDriverGetVersion(&version), "cudaDriverGetVersion");
  if (version < kLeastDriver) {
    throw std::runtime_error("backend 'cuda' needs a driver for CUDA " +
                             version_text(kLeastDriver) + " or newer, this one is for CUDA " +
                             version_text(version) + "; backend 'triton' works with it");
  }
  checked = true;
}

// Makes a device the current one. cudaSetDevice creates a context, so it is called only if need be.
class DeviceGuard {
 public:
  explicit DeviceGuard(int device) {
    check(cudaGetDevice(&before_), "cudaGetDevice");
    if (device == before_) return;
    check(cudaSetDevice(device), "cudaSetDevice");
    changed_ = true;
  }
  ~DeviceGuard() {
    if (changed_) cudaSetDevice(before_);
  }
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int before_ = 0;
  bool changed_ = false;
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
  check_driver();
  for (const Launch& launch : launches) {
    void* arguments[] = {const_cast<unsigned char*>(launch.parameters.data())};
    check(cudaLaunchKernel(find_kernel(launch), launch.grid, launch.threads, arguments,
                           launch.shared_bytes, static_cast<cudaStream_t>(stream)),
          "launch of a CUDA kernel");
  }
  check(cudaGetLastError(), "CUDA kernels");
}

}  // namespace mbf::cuda
