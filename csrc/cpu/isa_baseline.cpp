// What every machine of the architecture has: SSE2 on x86-64, NEON on ARM, 4 float lanes.
#include "tile_kernels.h"
#include "tile_pass.h"

namespace mbf {

Precisions<EntryPoints> baseline_kernels() {
  return {entry_points<Lanes<float, 4>>(), entry_points<Lanes<double, 2>>()};
}

}  // namespace mbf
