// What memory a call reads and writes: written memory must be its own and writable.
#pragma once

#include <cstdint>
#include <vector>

#include "block_views.h"

namespace mbf {

// Written memory may not be shared with anything else in the call nor, on the CPU, be read-only.
class MemoryMap {
 public:
  void reserve(size_t count) { ranges_.reserve(count); }
  void add(const char* list, const TensorList& tensors, const std::vector<BlockView>& views,
           bool written);
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

// Index of the first of these bytes that cannot be written, or -1. The system is asked, in two
// calls for all of them.
int64_t first_read_only(const std::vector<void*>& bytes);

}  // namespace mbf
