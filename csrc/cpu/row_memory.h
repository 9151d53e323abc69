// Copies parts of rows between tensors in torch's layout and contiguous buffers of T.
#pragma once

#include <algorithm>

#include "../shared_job.h"
#include "natural_memory.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

template <class Stored, class F>
MBF_INLINE void for_columns(Stored* row, const RowView& view, int64_t first, int64_t count, F f) {
  if (view.contiguous_columns()) {
    for (int64_t i = 0; i < count; ++i) f(row[first + i], i);
    return;
  }
  int64_t outer = first / view.inner;
  int64_t inner = first % view.inner;
  for (int64_t i = 0; i < count; ++i) {
    f(row[outer * view.outer_stride + inner * view.inner_stride], i);
    if (++inner == view.inner) {
      inner = 0;
      ++outer;
    }
  }
}

template <class T>
void read_columns(const RowView& view, int64_t g, int64_t r, int64_t first, int64_t count, T* out) {
  if (view.data == nullptr) {
    std::fill_n(out, count, T(0));
    return;
  }
  with_format<T>(view.format, [&](auto stored) {
    using Stored = decltype(stored);
    const Stored* row = static_cast<const Stored*>(view.data) + view.row_offset(g, r);
    for_columns(row, view, first, count,
                [&](const Stored& x, int64_t i) MBF_INLINE_LAMBDA { out[i] = widen_to<T>(x); });
  });
}

template <class T>
void write_columns(const RowView& view, int64_t g, int64_t r, int64_t first, int64_t count,
                   const T* in) {
  if (view.data == nullptr) return;
  with_format<T>(view.format, [&](auto stored) {
    using Stored = decltype(stored);
    Stored* row = static_cast<Stored*>(view.data) + view.row_offset(g, r);
    for_columns(row, view, first, count,
                [&](Stored& x, int64_t i) MBF_INLINE_LAMBDA { x = narrow_to<Stored>(in[i]); });
  });
}

// Columns first .. first + count - 1 of a row of a layer; zeros where the tensor is absent.
template <class T>
void read_row(const RowTensor& tensor, const SharedLayer& layer, int64_t g, int64_t r,
              int64_t first, int64_t count, T* out) {
  const int64_t of_weight = std::clamp<int64_t>(layer.columns - layer.bias - first, 0, count);
  if (of_weight > 0) read_columns(tensor.weight, g, r, first, of_weight, out);
  if (of_weight < count) read_columns(tensor.bias, g, r, 0, 1, out + of_weight);
}

// Nothing is written where the tensor is absent.
template <class T>
void write_row(const RowTensor& tensor, const SharedLayer& layer, int64_t g, int64_t r,
               int64_t first, int64_t count, const T* in) {
  const int64_t of_weight = std::clamp<int64_t>(layer.columns - layer.bias - first, 0, count);
  if (of_weight > 0) write_columns(tensor.weight, g, r, first, of_weight, in);
  if (of_weight < count) write_columns(tensor.bias, g, r, 0, 1, in + of_weight);
}

// The tensor's own memory for these columns, if they are contiguous elements of type T of the
// weight; otherwise null.
template <class T>
MBF_INLINE T* plain_row(const RowTensor& tensor, const SharedLayer& layer, int64_t g, int64_t r,
                        int64_t first, int64_t count) {
  constexpr Format own = sizeof(T) == 4 ? Format::Float32 : Format::Float64;
  const RowView& view = tensor.weight;
  if (view.data == nullptr || view.format != own || !view.contiguous_columns()) return nullptr;
  if (first + count > layer.columns - layer.bias) return nullptr;
  return static_cast<T*>(view.data) + view.row_offset(g, r) + first;
}

}  // namespace
}  // namespace mbf
