// AVX2 + FMA + F16C, 8 float lanes.
#include "isa.h"
#include "tile_kernels.h"

namespace mbf {

KernelSet avx2_kernels() {
  return {"avx2", 8, make_kernels<Lanes<float, 8>>(), make_kernels<Lanes<double, 4>>()};
}

}  // namespace mbf
