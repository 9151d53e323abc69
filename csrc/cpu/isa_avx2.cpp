// AVX2 + FMA + F16C, 8 float lanes.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet avx2_kernels() {
  return {"avx2", entry_points<Lanes<float, 8>>(), entry_points<Lanes<double, 4>>()};
}

}  // namespace mbf
