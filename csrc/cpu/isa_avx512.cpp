// AVX-512 F, DQ, BW and VL, 16 float lanes.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet avx512_kernels() {
  return {"avx512", entry_points<Lanes<float, 16>>(), entry_points<Lanes<double, 8>>()};
}

}  // namespace mbf
