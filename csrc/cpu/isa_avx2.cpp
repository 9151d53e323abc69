// AVX2 + FMA + F16C, 8 float lanes.
#include "tile_kernels.h"
#include "tile_pass.h"

namespace mbf {

Precisions<EntryPoints> avx2_kernels() {
  return {entry_points<Lanes<float, 8>>(), entry_points<Lanes<double, 4>>()};
}

}  // namespace mbf
