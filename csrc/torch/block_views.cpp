#include "block_views.h"

#include <algorithm>
#include <string>

namespace mbf {
namespace {

const char* format_name(Format format) {
  switch (format) {
    case Format::Float64: return "float64";
    case Format::BFloat16: return "bfloat16";
    case Format::Float16: return "float16";
    default: return "float32";
  }
}

std::string format_list(const std::vector<Format>& formats) {
  std::string text;
  for (Format format : formats)
    text += (text.empty() ? "" : " or ") + std::string(format_name(format));
  return text;
}

// Sets the format of a tensor; false if the kernels do not know its dtype. Tensor::scalar_type asks
// the library for the code of one dtype after the other; a call has hundreds of tensors, so the
// codes are kept here.
bool format_of(const Tensor& tensor, Format& format) {
  static const int32_t kFloat32 = aoti_torch_dtype_float32();
  static const int32_t kFloat64 = aoti_torch_dtype_float64();
  static const int32_t kBFloat16 = aoti_torch_dtype_bfloat16();
  static const int32_t kFloat16 = aoti_torch_dtype_float16();
  int32_t code = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  if (code == kFloat32) {
    format = Format::Float32;
  } else if (code == kBFloat16) {
    format = Format::BFloat16;
  } else if (code == kFloat16) {
    format = Format::Float16;
  } else if (code == kFloat64) {
    format = Format::Float64;
  } else {
    return false;
  }
  return true;
}

// The stride that walks dimensions first .. last - 1 in order, or -1 if no single stride does. The
// strides of dimensions of size one do not matter.
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

size_t format_bytes(Format format) {
  switch (format) {
    case Format::Float64: return 8;
    case Format::Float32: return 4;
    default: return 2;
  }
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
    if (!format_of(tensor, view.format) ||
        std::find(allowed.begin(), allowed.end(), view.format) == allowed.end()) {
      if (may_be_absent && tensor.numel() == 0 && tensor.scalar_type() == ScalarType::Bool) {
        view.data = nullptr;
        continue;
      }
      fail(where, ": expected ", format_list(allowed), ", got ", dtype_name(tensor.scalar_type()));
    }
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
