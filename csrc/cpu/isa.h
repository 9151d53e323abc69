// The instruction sets the kernels are compiled for, and the choice among them at run time.
#pragma once

#include <string>
#include <vector>

#include "shared_pass.h"
#include "tile_pass.h"

namespace mbf {

struct KernelSet {
  const char* isa;
  Precisions<EntryPoints> own;  // blocks with a matrix of their own
  Precisions<SharedEntryPoints> shared;
};

// The instruction sets compiled into this binary, from the least to the most demanding.
std::vector<std::string> compiled_isas();

// Those of them that this machine can run.
std::vector<std::string> runnable_isas();

// The kernels in use: the most demanding that this machine can run, unless MBF_CPU_ISA or
// select_isa has chosen others.
const KernelSet& current_kernels();
void select_isa(const std::string& name);

}  // namespace mbf
