// What every machine of the architecture has: SSE2 on x86-64, NEON on ARM, 4 float lanes.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet baseline_kernels() {
  return {"baseline", entry_points<Lanes<float, 4>>(), entry_points<Lanes<double, 2>>()};
}

}  // namespace mbf
