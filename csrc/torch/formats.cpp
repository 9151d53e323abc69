#include "formats.h"

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

}  // namespace

size_t format_bytes(Format format) {
  switch (format) {
    case Format::Float64: return 8;
    case Format::Float32: return 4;
    default: return 2;
  }
}

bool is_allowed(Name name, const Tensor& tensor, const std::vector<Format>& allowed,
                bool may_be_absent, Format& format) {
  const bool known = format_of(tensor, format);
  if (known && std::find(allowed.begin(), allowed.end(), format) != allowed.end()) return true;
  if (may_be_absent && tensor.numel() == 0 && tensor.scalar_type() == ScalarType::Bool) {
    return false;
  }
  fail(name, ": expected ", format_list(allowed), ", got ", dtype_name(tensor.scalar_type()));
}

const std::vector<Format>& natural_formats(bool float64) {
  static const std::vector<Format> wide{Format::Float64};
  static const std::vector<Format> narrow{Format::Float32, Format::BFloat16, Format::Float16};
  return float64 ? wide : narrow;
}

}  // namespace mbf
