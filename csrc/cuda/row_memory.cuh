// Walks tiles of rows in tensors of torch's layout. Neighbouring threads take neighbouring columns,
// so that loads and stores are coalesced where columns are contiguous.
#pragma once

#include "../core/macros.h"
#include "device.cuh"
#include "shared_parameters.h"

namespace mbf::cuda {

// One tensor of a layer, from a row and a column on.
struct RowMemory {
  void* data;  // null: reads as zeros, and is not written
  Format format;
  int64_t start;           // of the first row if rows have one stride, otherwise of the group
  uint32_t row, column;    // the first
  const RowStrides* wide;  // null: columns are contiguous and rows have one stride
  int64_t row_stride;

  __device__ __forceinline__ int64_t offset(int r, int c) const {
    if (wide == nullptr) return start + r * row_stride + c;
    const RowStrides& s = *wide;
    const uint32_t own_row = row + r;
    const uint32_t own_column = column + c;
    int64_t at = start;
    if (s.row_inner == 0) {
      at += own_row * s.row_stride;
    } else {
      const uint32_t inner = static_cast<uint32_t>(s.row_inner);
      at += own_row / inner * s.row_outer_stride + own_row % inner * s.row_stride;
    }
    if (s.inner == 0) return at + own_column;
    const uint32_t inner = static_cast<uint32_t>(s.inner);
    return at + own_column / inner * s.outer_stride + own_column % inner * s.inner_stride;
  }
};

// A tile of rows: where it is in its layer.
struct RowTile {
  int64_t group, row, column;
  int rows, columns;  // columns with that of a bias
  bool bias;          // the last column is that of the bias

  __device__ __forceinline__ int weight_columns() const { return columns - bias; }
};

// The weight (part 0) or the bias (part 1) of a tensor, from the start of a tile on.
template <class P>
__device__ __forceinline__ RowMemory row_memory(const P& p, const RowPointers& pointers,
                                                const Natural* natural, int part,
                                                const SharedShape& shape, const RowTile& tile) {
  RowMemory memory;
  memory.data = part == 0 ? pointers.weight : pointers.bias;
  memory.format = natural[part].format;
  memory.row = static_cast<uint32_t>(tile.row);
  memory.column = part == 0 ? static_cast<uint32_t>(tile.column) : 0;
  memory.wide = nullptr;
  int64_t group_stride;
  if (natural[part].place == kContiguous) {
    memory.row_stride = part == 0 ? shape.columns - shape.bias : 1;
    group_stride = shape.rows * memory.row_stride;
  } else {
    const RowStrides& strides = strides_at(p, natural[part].place);
    memory.row_stride = strides.row_stride;
    group_stride = strides.group_stride;
    if (strides.row_inner != 0 || strides.inner != 0) memory.wide = &strides;
  }
  memory.start = tile.group * group_stride;
  if (memory.wide == nullptr) memory.start += tile.row * memory.row_stride + memory.column;
  return memory;
}

// Four elements of a tile that one thread takes at a time. In quads they are neighbours in a row.
struct Places {
  int row[kQuad];  // one past the last row and more: nothing is there
  int column[kQuad];
};

// Calls f(Places) until the threads of a thread block have taken all elements of a tile.
template <int Threads, bool Quads, class F>
__device__ __forceinline__ void for_places(int rows, int columns, F f) {
  const int across = Quads ? columns / kQuad : columns;
  if (across == 0) return;
  int row = static_cast<int>(threadIdx.x) / across;
  int column = static_cast<int>(threadIdx.x) % across;
  const int down = Threads / across;
  const int right = Threads % across;
  const auto advance = [&] {
    row += down;
    column += right;
    if (column >= across) {
      column -= across;
      ++row;
    }
  };
  while (row < rows) {
    Places at;
    MBF_UNROLL
    for (int j = 0; j < kQuad; ++j) {
      at.row[j] = row;
      at.column[j] = Quads ? column * kQuad + j : column;
      if constexpr (!Quads) advance();
    }
    if constexpr (Quads) advance();
    f(at);
  }
}

// Calls f(part, columns, first, quads) for the weight and the bias: `first` is the tile's column of
// their first one, quads a std::bool_constant.
template <class F>
__device__ __forceinline__ void for_parts(const SharedShape& shape, const RowTile& tile, F f) {
  const int weight = tile.weight_columns();
  if (shape.quads) {
    f(0, weight, 0, std::true_type{});
  } else {
    f(0, weight, 0, std::false_type{});
  }
  if (tile.bias) f(1, 1, weight, std::false_type{});
}

template <bool Quads>
__device__ __forceinline__ void fetch(const RowMemory& memory, const Places& at, int rows,
                                      float (&x)[kQuad]) {
  if (memory.data == nullptr) {
    MBF_UNROLL
    for (int j = 0; j < kQuad; ++j) x[j] = 0;
    return;
  }
  if constexpr (Quads) {
    const float* from = static_cast<const float*>(memory.data);
    const float4 quad =
        *reinterpret_cast<const float4*>(from + memory.offset(at.row[0], at.column[0]));
    x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
  } else {
    with_format(memory.format, [&](auto* type) {
      using Stored = std::remove_pointer_t<decltype(type)>;
      const Stored* from = static_cast<const Stored*>(memory.data);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        const bool there = at.row[j] < rows;
        x[j] = there ? widen(from[memory.offset(at.row[j], at.column[j])]) : 0.0f;
      }
    });
  }
}

template <bool Quads>
__device__ __forceinline__ void send(const RowMemory& memory, const Places& at, int rows,
                                     const float (&x)[kQuad]) {
  if (memory.data == nullptr) return;
  if constexpr (Quads) {
    float* to = static_cast<float*>(memory.data);
    *reinterpret_cast<float4*>(to + memory.offset(at.row[0], at.column[0])) = {x[0], x[1], x[2],
                                                                               x[3]};
  } else {
    with_format(memory.format, [&](auto* type) {
      using Stored = std::remove_pointer_t<decltype(type)>;
      Stored* to = static_cast<Stored*>(memory.data);
      MBF_UNROLL
      for (int j = 0; j < kQuad; ++j) {
        if (at.row[j] < rows) {
          to[memory.offset(at.row[j], at.column[j])] = narrow<Stored>(x[j]);
        }
      }
    });
  }
}

// Rows of a strip in shared memory, and where its columns are there.
struct StripColumns {
  uint8_t place[kMaxSharedBlock];  // of a column of the tile

  // Every thread sets some; a __syncthreads follows.
  __device__ __forceinline__ void set(int columns, int width, int padded) {
    for (int c = static_cast<int>(threadIdx.x); c < columns; c += static_cast<int>(blockDim.x)) {
      place[c] = static_cast<uint8_t>(c / width * padded + c % width);
    }
  }
};

__device__ __forceinline__ float4& quad_at(float* x) { return *reinterpret_cast<float4*>(x); }
__device__ __forceinline__ const float4& quad_at(const float* x) {
  return *reinterpret_cast<const float4*>(x);
}

}  // namespace mbf::cuda
