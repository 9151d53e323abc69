// The 16-lane code of AVX-512 on pairs of AVX2 vectors, to test it on machines without AVX-512.
// Never chosen automatically.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet avx2_wide_kernels() {
  return {"avx2x16", entry_points<LanePair<Lanes<float, 8>>>(),
          entry_points<LanePair<Lanes<double, 4>>>()};
}

}  // namespace mbf
