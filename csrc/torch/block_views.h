// torch tensors as the blocks that kernels walk.
#pragma once

#include <vector>

#include "../job.h"
#include "tensor_checks.h"

namespace mbf {

size_t format_bytes(Format format);

// The tensors of one argument as blocks, blocks[i] of them in tensor i, each of one of the
// `allowed` formats. The dispatcher has made sure that all are dense. Where tensors may be absent,
// an empty bool tensor stands for one that is, and its view has no data.
std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const int64_t* blocks, int64_t count,
                                   const std::vector<Format>& allowed, bool may_be_absent = false);

}  // namespace mbf
