// AVX-512 F, DQ, BW and VL, 16 float lanes.
#include "tile_kernels.h"
#include "tile_pass.h"

namespace mbf {

Precisions<EntryPoints> avx512_kernels() {
  return {entry_points<Lanes<float, 16>>(), entry_points<Lanes<double, 8>>()};
}

}  // namespace mbf
