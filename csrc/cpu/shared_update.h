// The statistics of blocks that rows share.
#pragma once

#include <cmath>
#include <vector>

#include "../core/row_product.h"
#include "row_memory.h"
#include "shared_lanes.h"
#include "streaming.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

template <class V>
class SharedUpdateKernels : SharedLanes<V> {
  using Base = SharedLanes<V>;
  using T = typename Base::T;
  using Base::clear;
  using Base::for_elements;
  using Base::kMostVectors;
  using Base::kStride;
  using Base::L;
  using Base::layer_of;
  using Base::load;
  using Base::rows_of;
  using Base::splat;
  using Base::square_sum;
  using Base::store;
  using Base::with_vectors;

 public:
  // Updates the blocks of some strips. Gradients go through a buffer a few rows at a time, where
  // pieces that are not finite become zero.
  static void update(const SharedUpdatePass& pass, int64_t first, int64_t last) {
    const SharedUpdate& job = pass.job;
    std::vector<T> rows_buffer(kUpdateRows * kStride + kMaxCpuSharedBlock);
    std::vector<T> sums;
    for (int64_t task = first; task < last; ++task) {
      const int64_t l = layer_of(pass.first_task, job.layers, task);
      const SharedLayer& layer = job.layer[l];
      const int64_t strips = strips_of(layer);
      const int64_t strip = task - pass.first_task[l];
      const int64_t g = strip / strips;
      const int64_t piece = strip % strips * pieces_of_strip(layer);
      const int64_t end = std::min(layer.pieces, piece + pieces_of_strip(layer));
      const int64_t from = std::max(piece, job.first - layer.block(g, 0));
      const int64_t to = std::min(end, job.last - layer.block(g, 0));
      if (from >= to || job.grads[l].absent()) continue;
      update_strip(job, l, g, from, to, rows_buffer.data(), sums);
    }
  }

 private:
  static constexpr int kUpdateRows = 64;
  static constexpr int kRowsAhead = 8;

  // Sums of D D^T are kept for each piece as [width + 12, sum_stride]: rows up to a multiple of
  // rows_of and columns up to the end of a vector are computed.
  static int64_t sum_stride(const SharedLayer& layer) { return (layer.width + L - 1) / L * L; }
  static int64_t sums_of_piece(const SharedLayer& layer) {
    return (layer.width + 12) * sum_stride(layer);
  }

  static void update_strip(const SharedUpdate& job, int64_t l, int64_t g, int64_t piece,
                           int64_t end, T* buffer, std::vector<T>& sums) {
    const SharedLayer& layer = job.layer[l];
    const int64_t column = piece * layer.width;
    const int count = static_cast<int>(std::min(layer.columns, end * layer.width) - column);
    sums.assign((end - piece) * sums_of_piece(layer), T(0));
    for (int64_t row = 0; row < layer.rows; row += kUpdateRows) {
      const int rows = static_cast<int>(std::min<int64_t>(kUpdateRows, layer.rows - row));
      for (int r = 0; r < rows; ++r) {
        T* d = buffer + r * kStride;
        prefetch_row(job.grads[l], layer, g, row + r + kRowsAhead, column, count);
        if (const T* own = plain_row<T>(job.grads[l], layer, g, row + r, column, count)) {
          std::copy_n(own, count, d);
        } else {
          read_row(job.grads[l], layer, g, row + r, column, count, d);
        }
        if (!std::isfinite(square_sum(d, count))) {
          for (int64_t p = piece; p < end; ++p) {
            drop_bad_piece(d + (p - piece) * layer.width, layer.piece_width(p),
                           job.left_out[layer.block(g, p)]);
          }
        }
        if (job.squares != nullptr) update_squares(job, l, g, row + r, column, count, d);
      }
      for (int64_t p = piece; p < end; ++p) {
        add_outer_products(buffer + (p - piece) * layer.width, rows, layer.piece_width(p),
                           sum_stride(layer), sums.data() + (p - piece) * sums_of_piece(layer));
      }
    }
    for (int64_t p = piece; p < end; ++p) {
      average(job, layer, static_cast<T*>(job.stats) + layer.matrix(g, p), layer.piece_width(p),
              sums.data() + (p - piece) * sums_of_piece(layer));
      double& weight = job.weights[layer.block(g, p)];
      weight = job.beta * weight + (1.0 - job.beta);
    }
  }

  // Asks for columns of a row that comes later: rows are too far apart for the hardware to see.
  static MBF_INLINE void prefetch_row(const RowTensor& tensor, const SharedLayer& layer, int64_t g,
                                      int64_t r, int64_t column, int count) {
    if (r >= layer.rows) return;
    const T* run = plain_row<T>(tensor, layer, g, r, column, count);
    for (int i = 0; run != nullptr && i < count; i += 64 / sizeof(T)) mbf::prefetch(run + i);
  }

  static MBF_INLINE void drop_bad_piece(T* d, int count, int64_t& left_out) {
    if (std::isfinite(square_sum(d, count))) return;
    std::fill_n(d, count, T(0));
    ++left_out;
  }

  static void update_squares(const SharedUpdate& job, int64_t l, int64_t g, int64_t r,
                             int64_t column, int count, const T* d) {
    const SharedLayer& layer = job.layer[l];
    T buffer[kSharedStrip];
    prefetch_row(job.squares[l], layer, g, r + kRowsAhead, column, count);
    T* v = plain_row<T>(job.squares[l], layer, g, r, column, count);
    const bool plain = v != nullptr;
    if (!plain) {
      v = buffer;
      read_row(job.squares[l], layer, g, r, column, count, v);
    }
    for_elements(count, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
      using X = decltype(x);
      const X gradient = load(x, d + i);
      const X square = broadcast<X>(1.0 - job.beta) * (gradient * gradient);
      store(broadcast<X>(job.beta) * load(x, v + i) + square, v + i);
    });
    if (!plain) write_row(job.squares[l], layer, g, r, column, count, v);
  }

  // Adds the lower triangle of D^T D of `rows` rows, in whole panels.
  static void add_outer_products(const T* d, int rows, int width, int64_t stride, T* sums) {
    const int vectors = (width + L - 1) / L;
    for (int v = 0; v < vectors; v += kMostVectors) {
      with_vectors(std::min(kMostVectors, vectors - v), [&](auto n) MBF_INLINE_LAMBDA {
        add_panel<decltype(n)::value>(d, rows, v * L, width, stride, sums);
      });
    }
  }

  template <int N>
  static __attribute__((noinline)) void add_panel(const T* d, int rows, int column, int width,
                                                  int64_t stride, T* sums) {
    constexpr int R = rows_of(N);
    for (int i = column / R * R; i < width; i += R) {
      V products[R][N];
      clear(products);
      row_product<V, R, N>(
          [&](int r, int k) MBF_INLINE_LAMBDA { return splat(d[k * kStride + i + r]); },
          [&](int k, int n) MBF_INLINE_LAMBDA { return V::load(d + k * kStride + column + n * L); },
          rows, products);
      MBF_UNROLL
      for (int r = 0; r < R; ++r) {
        MBF_UNROLL
        for (int n = 0; n < N; ++n) {
          T* sum = sums + (i + r) * stride + column + n * L;
          (V::load(sum) + products[r][n]).store(sum);
        }
      }
    }
  }

  static void average(const SharedUpdate& job, const SharedLayer& layer, T* stats, int width,
                      const T* sums) {
    const T beta = static_cast<T>(job.beta);
    const T share = static_cast<T>((1.0 - job.beta) / static_cast<double>(layer.rows));
    for (int i = 0; i < width; ++i) {
      for (int j = 0; j <= i; ++j) {
        const T value = beta * stats[i * layer.width + j] + share * sums[i * sum_stride(layer) + j];
        stats[i * layer.width + j] = value;
        stats[j * layer.width + i] = value;
      }
    }
  }
};

}  // namespace
}  // namespace mbf
