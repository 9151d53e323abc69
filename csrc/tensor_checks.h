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

#include "job.h"

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

// The device a call is for: the CPU, or a CUDA device by its index.
struct Place {
  bool cuda = false;
  int32_t index = 0;
};
std::ostream& operator<<(std::ostream& out, const Place& place);
void check_place(Name name, const Tensor& tensor, const Place& place);

// Contiguous state tensor of the given shape and dtype at that place.
void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype, const Place& place);

// The tensors of one argument as blocks, blocks[i] of them in tensor i, each of one of the
// `allowed` formats. The dispatcher has seen to it that all are dense. Where tensors
// may be absent, an empty bool tensor stands for one that is, and its view has no data.
std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const std::vector<int64_t>& blocks,
                                   const std::vector<Format>& allowed, bool may_be_absent = false);

// Memory of the call: written memory may not be shared with anything else, nor, on the
// CPU, be read-only.
class MemoryMap {
 public:
  void reserve(size_t count) { ranges_.reserve(count); }
  void add(const char* list, const TensorList& tensors, const std::vector<BlockView>& views,
           const std::vector<int64_t>& blocks, int64_t block_size, bool written);
  void add(const char* name, const Tensor& tensor, bool written);
  void check(const Place& place);

 private:
  struct Range {
    uintptr_t begin, end;
    Name name;
    bool written;
  };
  void check_writable() const;

  std::vector<Range> ranges_;
};

// Where each tensor's tiles start.
std::vector<int64_t> tile_starts(const std::vector<int64_t>& blocks);

// Index of the first of these bytes that cannot be written, or -1. The system is asked, in two
// calls for all of them.
int64_t first_read_only(const std::vector<void*>& bytes);

}  // namespace mbf
