#include "tensor_checks.h"

#include <algorithm>
#include <cmath>

#include "../job.h"

namespace mbf {

std::string shape_text(const int64_t* sizes, int64_t dims) {
  std::string text = "(";
  for (int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

std::ostream& operator<<(std::ostream& out, const Name& name) {
  out << name.list;
  if (name.index >= 0) out << '[' << name.index << ']';
  return out;
}

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Half: return "float16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    default: return "another dtype";
  }
}

void check_block_size(int64_t block_size) {
  if (block_size < 1 || block_size > kMaxBlock) {
    fail("block_size: expected 1 to ", kMaxBlock, ", got ", block_size);
  }
}

void check_unit_interval(const char* name, double value) {
  if (!(value >= 0.0 && value <= 1.0)) fail(name, ": expected a number in [0, 1], got ", value);
}

void check_damping(double value) {
  if (!(value >= 0.0) || std::isinf(value)) {
    fail("damping: expected a finite number >= 0, got ", value);
  }
}

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return place.cuda ? out << "cuda:" << place.index : out << "cpu";
}

void check_place(Name name, const Tensor& tensor, const Place& place) {
  const bool there =
      place.cuda ? tensor.is_cuda() && tensor.get_device_index() == place.index : tensor.is_cpu();
  if (!there) fail(name, ": expected a tensor on ", place);
}

void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype, const Place& place) {
  check_place({name}, tensor, place);
  if (tensor.scalar_type() != dtype) {
    fail(name, ": expected ", dtype_name(dtype), ", got ", dtype_name(tensor.scalar_type()));
  }
  const auto sizes = tensor.sizes();
  const bool same =
      sizes.size() == shape.size() && std::equal(shape.begin(), shape.end(), sizes.begin());
  if (!same) {
    fail(name, ": expected shape ", shape_text(shape.begin(), shape.size()), ", got ",
         shape_text(sizes.data(), sizes.size()));
  }
  if (!tensor.is_contiguous()) fail(name, ": expected contiguous memory");
}

}  // namespace mbf
