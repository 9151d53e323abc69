// AVX2 + FMA + F16C, 8 float lanes.
#include "shared_kernels.h"
#include "shared_pass.h"

namespace mbf {

Precisions<SharedEntryPoints> avx2_shared_kernels() {
  return {shared_entry_points<Lanes<float, 8>>(), shared_entry_points<Lanes<double, 4>>()};
}

}  // namespace mbf
