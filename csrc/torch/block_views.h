// Views of torch tensors as blocks.
#pragma once

#include <vector>

#include "../job.h"
#include "formats.h"

namespace mbf {

// The stride that walks dimensions first .. last - 1 in order, or -1 if no single stride does. The
// strides of dimensions of size one do not matter.
int64_t joint_stride(const int64_t* sizes, const int64_t* strides, int64_t first, int64_t last);

// Views of the tensors of one argument: tensor i has blocks[i] blocks, in one of the `allowed`
// formats. The dispatcher has made sure that no tensor is sparse. Where tensors may be absent, an
// empty bool tensor stands for an absent one; its view has no data.
std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const int64_t* blocks, int64_t count,
                                   const std::vector<Format>& allowed, bool may_be_absent = false);

}  // namespace mbf
