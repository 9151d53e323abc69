// The memory that a call reads and writes.
#pragma once

#include <cstdint>
#include <vector>

#include "block_views.h"

namespace mbf {

// Memory that a call writes must not overlap any other memory of the call and, on the CPU, must not
// be read-only.
class MemoryMap {
 public:
  void reserve(size_t count) { ranges_.reserve(count); }
  void add(const char* list, const TensorList& tensors, const std::vector<BlockView>& views,
           bool written);
  void add(const char* name, const Tensor& tensor, bool written);
  // A tensor of any strides.
  void add(Name name, const Tensor& tensor, bool written);
  void check(const Place& place);

 private:
  struct Range {
    uintptr_t begin, end;
    Name name;
    bool written;
  };
  void add(Name name, const Tensor& tensor, bool contiguous, size_t element_bytes, bool written);
  void check_writable() const;

  std::vector<Range> ranges_;
};

}  // namespace mbf
