// From torch tensors to what the kernels take, with every argument checked before anything is
// written. The only code that sees both torch and csrc/cpu, together with bindings.cpp.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <cstdint>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cpu/job.h"

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

// Checks that need only numbers.
void check_block_size(int64_t block_size);
void check_unit_interval(const char* name, double value);
void check_damping(double value);

// Contiguous state tensor of the given shape and dtype on the CPU.
void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype);

// The tensors of one argument as blocks. `allowed` lists the dtypes the argument may have.
std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const std::vector<ScalarType>& allowed);

// Memory of the call: written memory may not be shared with anything else, nor be read-only.
class MemoryMap {
 public:
  void reserve(size_t count) { ranges_.reserve(count); }
  void add(const char* list, const TensorList& tensors, const std::vector<BlockView>& views,
           int64_t block_size, bool written);
  void add(const char* name, const Tensor& tensor, bool written);
  void check();

 private:
  struct Range {
    uintptr_t begin, end;
    Name name;
    bool written;
  };
  std::vector<Range> ranges_;
};

// Where each tensor's tiles start.
std::vector<int64_t> tile_starts(const std::vector<int64_t>& blocks);

// True if the pages of [data, data + bytes) can be written. Asked of the system once per address.
bool memory_is_writable(const void* data, size_t bytes);

}  // namespace mbf
