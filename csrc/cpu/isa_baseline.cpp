// What every machine of the architecture has: SSE2 on x86-64, NEON on ARM, 4 float lanes.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet baseline_kernels() {
  return {"baseline", 4, make_kernels<Lanes<float, 4>>(), make_kernels<Lanes<double, 2>>()};
}

}  // namespace mbf
