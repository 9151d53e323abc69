// The instruction sets the kernels are compiled for and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "job.h"

namespace mbf {

// One per translation unit; which ones exist in this build is decided by setup.py.
KernelSet baseline_kernels();
KernelSet avx2_kernels();
KernelSet avx2_wide_kernels();
KernelSet avx512_kernels();

// Names compiled into this binary, from the least to the most demanding.
std::vector<std::string> compiled_isas();

// The compiled ones this machine can run.
std::vector<std::string> runnable_isas();

// What runs now: the most demanding runnable level, or what MBF_CPU_ISA or select_isa forced.
const KernelSet& current_kernels();
void select_isa(const std::string& name);

}  // namespace mbf
