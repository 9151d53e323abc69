// Instead of csrc/cpu/isa.cpp in test programs: the kernels of one instruction set, whether or not
// the machine says that it has it. MBF_LEVEL is the <name> in isa_<name>.cpp and shared_<name>.cpp.
#include "../../csrc/cpu/isa.h"

#define MBF_SET_OF(name) {#name, name##_kernels(), name##_shared_kernels()}
#define MBF_SET(name) MBF_SET_OF(name)

namespace mbf {

const KernelSet& current_kernels() {
  static const KernelSet kernels = MBF_SET(MBF_LEVEL);
  return kernels;
}

}  // namespace mbf
