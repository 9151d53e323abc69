// The 16-lane code of the AVX-512 level on pairs of AVX2 vectors, so that its logic is tested on
// machines without AVX-512. Never chosen by itself.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet avx2_wide_kernels() {
  return {"avx2x16", entry_points<LanePair<Lanes<float, 8>>>(),
          entry_points<LanePair<Lanes<double, 4>>>()};
}

}  // namespace mbf
