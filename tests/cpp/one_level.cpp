// Instead of csrc/cpu/isa.cpp in test programs: the kernels of one instruction set, whether or not
// the machine says that it has it. MBF_LEVEL is the name of the file isa_<name>.cpp.
#include "../../csrc/cpu/isa.h"

#define MBF_JOIN(name) name##_kernels
#define MBF_KERNELS(name) MBF_JOIN(name)()

namespace mbf {

const KernelSet& current_kernels() {
  static const KernelSet kernels = MBF_KERNELS(MBF_LEVEL);
  return kernels;
}

}  // namespace mbf
