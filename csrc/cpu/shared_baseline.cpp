// What every machine of the architecture has: SSE2 on x86-64, NEON on ARM, 4 float lanes.
#include "shared_kernels.h"
#include "shared_pass.h"

namespace mbf {

Precisions<SharedEntryPoints> baseline_shared_kernels() {
  return {shared_entry_points<Lanes<float, 4>>(), shared_entry_points<Lanes<double, 2>>()};
}

}  // namespace mbf
