// AVX-512 F, DQ, BW and VL, 16 float lanes.
#include "shared_kernels.h"
#include "shared_pass.h"

namespace mbf {

Precisions<SharedEntryPoints> avx512_shared_kernels() {
  return {shared_entry_points<Lanes<float, 16>>(), shared_entry_points<Lanes<double, 8>>()};
}

}  // namespace mbf
