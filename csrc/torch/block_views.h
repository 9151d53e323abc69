// Views of torch tensors as blocks.
#pragma once

#include <vector>

#include "../job.h"
#include "tensor_checks.h"

namespace mbf {

size_t format_bytes(Format format);

// Views of the tensors of one argument: tensor i has blocks[i] blocks, in one of the `allowed`
// formats. The dispatcher has made sure that no tensor is sparse. Where tensors may be absent, an
// empty bool tensor stands for an absent one; its view has no data.
std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const int64_t* blocks, int64_t count,
                                   const std::vector<Format>& allowed, bool may_be_absent = false);

}  // namespace mbf
