// The CPU kernels for blocks that rows share.
#pragma once

#include "shared_step.h"
#include "shared_update.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

template <class V>
SharedEntryPoints shared_entry_points() {
  return {SharedStepKernels<V>::step, SharedStepKernels<V>::apply, SharedUpdateKernels<V>::update};
}

}  // namespace
}  // namespace mbf
