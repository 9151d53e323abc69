// The 16-lane code of AVX-512 on pairs of AVX2 vectors, to test it on machines without AVX-512.
// Never chosen automatically.
#include "tile_kernels.h"
#include "tile_pass.h"

namespace mbf {

Precisions<EntryPoints> avx2_wide_kernels() {
  return {entry_points<LanePair<Lanes<float, 8>>>(), entry_points<LanePair<Lanes<double, 4>>>()};
}

}  // namespace mbf
