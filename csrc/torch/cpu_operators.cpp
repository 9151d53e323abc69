// The operators on CPU tensors.
#include <functional>

#include "../cpu/driver.h"
#include "../cpu/huge_pages.h"
#include "operators.h"

namespace mbf {
namespace {

void torch_parallel_for(int64_t begin, int64_t end, int64_t grain,
                        const std::function<void(int64_t, int64_t)>& body) {
  torch::stable::parallel_for(begin, end, grain, body);
}

struct Cpu {
  static Place place(const Tensor&) { return {}; }

  template <class Job>
  static void run(const Job& job, const Place&, const Tensor&) {
    mbf::run(job, torch_parallel_for);
  }

  // A result above a few megabytes is fresh memory, whose page faults take longer than the
  // arithmetic.
  static void prepare(const Tensor& result) {
    constexpr size_t kFreshBytes = size_t{4} << 20;
    const size_t bytes = result.numel() * result.element_size();
    if (bytes < kFreshBytes) return;
    advise_huge_pages(reinterpret_cast<uintptr_t>(result.data_ptr()), bytes);
  }
};

}  // namespace
}  // namespace mbf

STABLE_TORCH_LIBRARY_IMPL(mbf_kernels, CPU, m) { mbf::implement_operators<mbf::Cpu>(m); }
