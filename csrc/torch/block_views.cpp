#include "block_views.h"

#include <algorithm>

namespace mbf {
namespace {

// The blocks of a tensor that is not contiguous. Its trailing dimensions must form a block that one
// stride walks, and two strides must walk the leading ones, as in channels_last convolutions.
bool strided_view(const Tensor& tensor, int64_t d, BlockView& view) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t dims = tensor.dim();
  int64_t split = dims;
  int64_t elements = 1;
  while (split > 0 && elements < d) elements *= sizes[--split];
  if (elements != d) return false;
  view.element_stride = joint_stride(sizes.data(), strides.data(), split, dims);
  if (view.element_stride < 0) return false;
  for (int64_t middle = 0; middle <= split; ++middle) {
    const int64_t outer = joint_stride(sizes.data(), strides.data(), 0, middle);
    const int64_t inner = joint_stride(sizes.data(), strides.data(), middle, split);
    if (outer < 0 || inner < 0) continue;
    view.inner = 1;
    for (int64_t i = middle; i < split; ++i) view.inner *= sizes[i];
    view.outer_stride = outer;
    view.inner_stride = inner;
    return true;
  }
  return false;
}

}  // namespace

int64_t joint_stride(const int64_t* sizes, const int64_t* strides, int64_t first, int64_t last) {
  int64_t expected = -1;
  int64_t step = 1;
  for (int64_t i = last - 1; i >= first; --i) {
    if (sizes[i] == 1) continue;
    if (expected < 0) {
      step = strides[i];
    } else if (strides[i] != expected) {
      return -1;
    }
    expected = strides[i] * sizes[i];
  }
  return step;
}

std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const int64_t* blocks, int64_t count,
                                   const std::vector<Format>& allowed, bool may_be_absent) {
  if (static_cast<int64_t>(tensors.size()) != count) {
    fail(name, ": expected ", count, " tensors, got ", tensors.size());
  }
  std::vector<BlockView> views(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const Name where{name, static_cast<int64_t>(i)};
    BlockView& view = views[i];
    if (!is_allowed(where, tensor, allowed, may_be_absent, view.format)) continue;
    const int64_t numel = tensor.numel();
    if (numel != blocks[i] * block_size) {
      fail(where, ": expected ", blocks[i] * block_size, " numbers, got ", numel);
    }
    view.data = tensor.data_ptr();
    view.contiguous = tensor.is_contiguous();
    view.inner = std::max<int64_t>(1, blocks[i]);
    view.outer_stride = 0;
    view.inner_stride = block_size;
    view.element_stride = 1;
    if (!view.contiguous && numel > 0 && !strided_view(tensor, block_size, view)) {
      fail(where, ": its memory cannot be walked in blocks of ", block_size, " (strides ",
           shape_text(tensor.strides().data(), tensor.dim()),
           "); use a contiguous or channels_last tensor");
    }
  }
  return views;
}

}  // namespace mbf
