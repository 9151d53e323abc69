// Checks of single arguments, and the texts of their errors.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <initializer_list>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace mbf {

using Tensor = torch::stable::Tensor;
using TensorList = std::vector<Tensor>;
using ScalarType = torch::headeronly::ScalarType;

template <class... Args>
[[noreturn]] void fail(const Args&... args) {
  std::ostringstream text;
  ((text << args), ...);
  throw std::runtime_error(text.str());
}

// A named tensor in an error message: "grads[3]" or "stats".
struct Name {
  const char* list;
  int64_t index = -1;
};
std::ostream& operator<<(std::ostream& out, const Name& name);

const char* dtype_name(ScalarType type);

// "(3, 4)"
std::string shape_text(const int64_t* sizes, int64_t dims);

void check_block_size(int64_t block_size);
void check_unit_interval(const char* name, double value);
void check_damping(double value);

// The device of a call: the CPU, or a CUDA device by its index.
struct Place {
  bool cuda = false;
  int32_t index = 0;
};
std::ostream& operator<<(std::ostream& out, const Place& place);
void check_place(Name name, const Tensor& tensor, const Place& place);

// Expects a contiguous tensor of this shape and dtype at this place.
void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype, const Place& place);

}  // namespace mbf
