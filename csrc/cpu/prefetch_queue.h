// Memory that will be needed soon, asked for a few cache lines at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "streaming.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

// The hardware does not see that rows follow each other, and a core has room for few requests at a
// time. So the next rows are asked for in between products, which have no other use for memory.
template <class T>
class PrefetchQueue {
 public:
  // Columns first .. first + columns - 1 of some rows; at most kMost times.
  void add(T* const* rows, int count, int64_t first, int64_t columns) {
    parts_[last_++] = {rows, count, first, static_cast<int>((columns + kLine - 1) / kLine)};
  }

  // All of it in so many calls of fetch_some.
  void spread_over(int64_t calls) {
    int64_t lines = 0;
    for (int i = 0; i < last_; ++i) lines += parts_[i].count * parts_[i].lines;
    at_once_ = static_cast<int>((lines + calls - 1) / std::max<int64_t>(calls, 1));
  }

  MBF_INLINE void fetch_some() {
    for (int n = 0; n < at_once_ && part_ < last_; ++n) {
      const Part& part = parts_[part_];
      prefetch(part.rows[row_] + part.first + line_ * kLine);
      if (++line_ < part.lines) continue;
      line_ = 0;
      if (++row_ < part.count) continue;
      row_ = 0;
      ++part_;
    }
  }

 private:
  struct Part {
    T* const* rows;
    int count;
    int64_t first;
    int lines;
  };
  static constexpr int kMost = 3;
  static constexpr int kLine = 64 / static_cast<int>(sizeof(T));

  Part parts_[kMost];
  int last_ = 0;
  int at_once_ = 0;
  int part_ = 0, row_ = 0, line_ = 0;
};

}  // namespace
}  // namespace mbf
