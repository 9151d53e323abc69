// Views of torch tensors as rows, and the layers that they belong to.
#pragma once

#include <vector>

#include "../shared_job.h"
#include "tensor_checks.h"

namespace mbf {

// How the dimensions of a weight become rows.
enum class RowKind : int64_t {
  Rows = 0,        // [groups * rows, ...]: a row per output
  Kernels = 1,     // [outputs, inputs, ...]: a row per kernel
  Transposed = 2,  // [groups * inputs, rows, ...]: the weight of a transposed convolution
};

// Layers as an operator gets them: int64 [layers, 6] on the host, in each row groups, rows, columns
// (that of the bias included), width, RowKind, and 1 if a bias is joined.
struct RowLayout {
  // `most`: the columns of the widest piece that may be there.
  RowLayout(const Tensor& table, int64_t most);

  std::vector<SharedLayer> layers;
  std::vector<RowKind> kinds;
  int64_t tensors = 0;   // parameters of all layers
  int64_t blocks = 0;    // of all layers
  int64_t elements = 0;  // of all matrices
};

// Views of the tensors of one argument: the weight of each layer, followed by its bias if one is
// joined. Where tensors may be absent, an empty bool tensor stands for an absent one.
std::vector<RowTensor> row_views(const char* name, const TensorList& tensors,
                                 const RowLayout& layout, const std::vector<Format>& allowed,
                                 bool may_be_absent);

}  // namespace mbf
