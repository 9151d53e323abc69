// The 16-lane code of AVX-512 on pairs of AVX2 vectors, to test it on machines without AVX-512.
// Never chosen automatically.
#include "shared_kernels.h"
#include "shared_pass.h"

namespace mbf {

Precisions<SharedEntryPoints> avx2_wide_shared_kernels() {
  return {shared_entry_points<LanePair<Lanes<float, 8>>>(),
          shared_entry_points<LanePair<Lanes<double, 4>>>()};
}

}  // namespace mbf
