// Copies blocks between tensors in torch's layout and contiguous buffers of T.
#pragma once

#include <algorithm>
#include <cstddef>

#include "../job.h"
#include "element_formats.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

template <class T, class Stored>
MBF_INLINE T widen_to(Stored x) {
  return static_cast<T>(widen(x));
}

template <class Stored, class T>
MBF_INLINE Stored narrow_to(T x) {
  if constexpr (std::is_same_v<Stored, T>) {
    return x;
  } else {
    return narrow<Stored>(static_cast<float>(x));
  }
}

template <class Stored, class T>
void read_blocks(const BlockView& view, int d, int64_t first, int64_t count, T* out) {
  const Stored* data = static_cast<const Stored*>(view.data);
  if (view.contiguous) {
    const Stored* run = data + first * d;
    for (int64_t i = 0; i < count * d; ++i) out[i] = widen_to<T>(run[i]);
    return;
  }
  for (int64_t b = first; b < first + count; ++b, out += d) {
    const Stored* block =
        data + (b / view.inner) * view.outer_stride + (b % view.inner) * view.inner_stride;
    for (int e = 0; e < d; ++e) out[e] = widen_to<T>(block[e * view.element_stride]);
  }
}

template <class Stored, class T>
void write_blocks(const BlockView& view, int d, int64_t first, int64_t count, const T* in) {
  Stored* data = static_cast<Stored*>(view.data);
  if (view.contiguous) {
    Stored* run = data + first * d;
    for (int64_t i = 0; i < count * d; ++i) run[i] = narrow_to<Stored>(in[i]);
    return;
  }
  for (int64_t b = first; b < first + count; ++b, in += d) {
    Stored* block =
        data + (b / view.inner) * view.outer_stride + (b % view.inner) * view.inner_stride;
    for (int e = 0; e < d; ++e) block[e * view.element_stride] = narrow_to<Stored>(in[e]);
  }
}

template <class T, class F>
MBF_INLINE void with_format(Format format, F f) {
  if constexpr (std::is_same_v<T, double>) {
    f(double{});  // float64 statistics serve float64 tensors only
  } else {
    switch (format) {
      case Format::BFloat16: return f(BFloat16{});
      case Format::Float16: return f(Float16{});
      default: return f(float{});
    }
  }
}

// Whether the tensor's own memory can serve as a buffer: contiguous elements of type T.
template <class T>
MBF_INLINE bool is_plain(const BlockView& view) {
  constexpr Format own = sizeof(T) == 4 ? Format::Float32 : Format::Float64;
  return view.contiguous && view.format == own;
}

// Returns blocks first .. first + count - 1 as contiguous elements of type T, padded with zeros to
// `padded` blocks: the tensor's own memory if it is plain and needs no padding, otherwise a copy in
// `buffer`.
template <class T>
MBF_INLINE T* natural_blocks(const BlockView& view, int d, int64_t first, int64_t count,
                             int64_t padded, T* buffer) {
  if (is_plain<T>(view) && count == padded) return static_cast<T*>(view.data) + first * d;
  with_format<T>(view.format, [&](auto stored) {
    read_blocks<decltype(stored)>(view, d, first, count, buffer);
  });
  std::fill(buffer + count * d, buffer + padded * d, T(0));
  return buffer;
}

// Stores `values`, which natural_blocks returned, in the tensor. There is nothing to do if they are
// the tensor's own memory.
template <class T>
MBF_INLINE void write_back(const BlockView& view, int d, int64_t first, int64_t count,
                           const T* values, const T* buffer) {
  if (values != buffer) return;
  with_format<T>(view.format, [&](auto stored) {
    write_blocks<decltype(stored)>(view, d, first, count, values);
  });
}

}  // namespace
}  // namespace mbf
