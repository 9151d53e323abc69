// The step of blocks that rows share.
#pragma once

#include <cmath>

#include "../core/row_product.h"
#include "../core/step.h"
#include "prefetch_queue.h"
#include "row_memory.h"
#include "shared_lanes.h"
#include "streaming.h"

namespace mbf {
namespace {  // not shared between instruction sets: see tile_kernels.h

template <class V>
class SharedStepKernels : SharedLanes<V> {
  using Base = SharedLanes<V>;
  using T = typename Base::T;
  using Base::clear;
  using Base::for_elements;
  using Base::kMostVectors;
  using Base::kStride;
  using Base::L;
  using Base::layer_of;
  using Base::load;
  using Base::panels_of;
  using Base::rows_of;
  using Base::splat;
  using Base::square_sum;
  using Base::store;
  using Base::sum_of;
  using Base::with_vectors;

 public:
  // Takes the rows of some tasks through a step, or through its first pass. While the rows of a
  // strip of columns are in cache their momenta are accumulated, multiplied with P and, if the step
  // has a single pass, their parameters are moved.
  static void step(const SharedPass& pass, int64_t first, int64_t last) {
    alignas(64) T momenta[kSharedRows * kStride];
    alignas(64) T directions[kSharedRows * kStride];
    const SharedStep& job = pass.job;
    const StepScalars<V> vectors = job.scalars.map(broadcast<V>);
    const StepScalars<T> scalars = job.scalars.map(broadcast<T>);
    for_tasks(pass, first, last, [&](int64_t l, int64_t g, int64_t row, int rows, int64_t task) {
      const SharedLayer& layer = job.layer[l];
      const T* inverse = static_cast<const T*>(job.inverse);
      const TaskRows w(moving(job, l), layer, g, row, rows);
      const TaskRows d(job.grads[l], layer, g, row, rows);
      const TaskRows m(job.momenta[l], layer, g, row, rows);
      std::fill(momenta + rows * kStride, momenta + kSharedRows * kStride, T(0));
      SharedNorms norms{};
      for_strips(layer, [&](int64_t piece, int64_t end) {
        const int64_t column = piece * layer.width;
        const int count = static_cast<int>(std::min(layer.columns, end * layer.width) - column);
        // All but the bias, which is apart so that the others can stay in the tensors' memory.
        const int inputs = count - (layer.bias && column + count == layer.columns);
        T buffer[2][kSharedStrip];
        for (int r = 0; r < rows; ++r) {
          T* own = m.columns(r, column, inputs, buffer[0]);
          const T* grads = d.columns(r, column, inputs, buffer[1]);
          T* kept = momenta + r * kStride;
          for_elements(inputs, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
            const auto& s = pick(x, vectors, scalars);
            const auto gradient = load(x, grads + i);
            const auto sum = accumulated(s, load(x, own + i), gradient);
            store(sum, own + i);
            store(looked_ahead(s, sum, gradient), kept + i);
          });
          m.write_back(r, column, inputs, own, buffer[0]);
          if (inputs < count) {
            const T sum = accumulated(scalars, m.bias(r), d.bias(r));
            m.set_bias(r, sum);
            kept[inputs] = looked_ahead(scalars, sum, d.bias(r));
          }
        }
        PrefetchQueue<T> next;
        m.ask_for(column + count, next);
        d.ask_for(column + count, next);
        if (!job.rescales()) w.ask_for(column + count, next);
        next.spread_over((end - piece) * panels_of(layer.width) *
                         ((rows + rows_of(kMostVectors) - 1) / rows_of(kMostVectors)));
        for (int64_t p = piece; p < end; ++p) {
          const int64_t start = (p - piece) * layer.width;
          multiply(momenta + start, inverse + layer.matrix(g, p), static_cast<int>(layer.width),
                   layer.piece_width(p), rows, directions + start, next);
        }
        if (job.refresh_targets) {
          for (int r = 0; r < rows; ++r) {
            norms.adam += adam_square(job, l, g, row + r, piece, end, momenta + r * kStride);
          }
        }
        for (int r = 0; r < rows; ++r) {
          const T* direction = directions + r * kStride;
          if (job.rescales()) {
            keep(pass, direction_row(pass, l, g, row + r) + column, direction, count);
            norms.direction += direction_square(layer, piece, end, count, direction);
            continue;
          }
          T* own = w.columns(r, column, inputs, buffer[0]);
          for_elements(inputs, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
            store(moved(pick(x, vectors, scalars), load(x, own + i), load(x, direction + i)),
                  own + i);
          });
          w.write_back(r, column, inputs, own, buffer[0]);
          if (inputs < count) w.set_bias(r, moved(scalars, w.bias(r), direction[inputs]));
        }
      });
      if (pass.norms != nullptr) pass.norms[task] = norms;
    });
    if (pass.stream_directions) stream_fence();
  }

  // The second pass of a rescaled step.
  static void apply(const SharedPass& pass, int64_t first, int64_t last) {
    const SharedStep& job = pass.job;
    alignas(64) T buffer[kSharedStrip];
    for_tasks(pass, first, last, [&](int64_t l, int64_t g, int64_t row, int rows, int64_t) {
      const SharedLayer& layer = job.layer[l];
      for (int64_t r = row; r < row + rows; ++r) {
        const T* direction = direction_row(pass, l, g, r);
        if (T* plain = plain_row<T>(job.params[l], layer, g, r, 0, layer.columns - layer.bias)) {
          const bool moves = job.grads[l].weight.data != nullptr;
          const int64_t count = layer.columns - layer.bias;
          if (moves) rescaled(job, pass.scales[l], plain, direction, count);
          if (layer.bias) move_rescaled(pass, l, g, r, count, 1, direction, buffer);
          continue;
        }
        for (int64_t column = 0; column < layer.columns; column += kSharedStrip) {
          const int64_t count = std::min<int64_t>(kSharedStrip, layer.columns - column);
          move_rescaled(pass, l, g, r, column, count, direction, buffer);
        }
      }
    });
  }

 private:
  template <class F>
  static MBF_INLINE void for_tasks(const SharedPass& pass, int64_t first, int64_t last, F f) {
    for (int64_t task = first; task < last; ++task) {
      const int64_t l = layer_of(pass.first_task, pass.job.layers, task);
      if (pass.job.grads[l].absent()) continue;
      const SharedLayer& layer = pass.job.layer[l];
      const int64_t per_group = (layer.rows + kSharedRows - 1) / kSharedRows;
      const int64_t own = task - pass.first_task[l];
      const int64_t row = own % per_group * kSharedRows;
      const int rows = static_cast<int>(std::min<int64_t>(kSharedRows, layer.rows - row));
      f(l, own / per_group, row, rows, task);
    }
  }

  // Calls f(piece, end) for strips of whole pieces.
  template <class F>
  static MBF_INLINE void for_strips(const SharedLayer& layer, F f) {
    const int64_t pieces = pieces_of_strip(layer);
    for (int64_t p = 0; p < layer.pieces; p += pieces) f(p, std::min(layer.pieces, p + pieces));
  }

  static MBF_INLINE const StepScalars<V>& pick(V, const StepScalars<V>& vectors,
                                               const StepScalars<T>&) {
    return vectors;
  }
  static MBF_INLINE const StepScalars<T>& pick(T, const StepScalars<V>&,
                                               const StepScalars<T>& scalars) {
    return scalars;
  }

  // The rows of a task in one tensor. Where their memory can serve as a buffer, its addresses are
  // found once for all strips.
  class TaskRows {
   public:
    TaskRows(const RowTensor& tensor, const SharedLayer& layer, int64_t g, int64_t row, int rows)
        : tensor_(tensor), group_(g), row_(row), rows_(rows) {
      plain_columns_ = layer.columns - layer.bias;
      if (plain_row<T>(tensor, layer, g, row, 0, plain_columns_) == nullptr) plain_columns_ = 0;
      for (int r = 0; r < rows && plain_columns_ > 0; ++r) {
        plain_[r] = plain_row<T>(tensor, layer, g, row + r, 0, plain_columns_);
      }
    }

    // The tensor's own memory for these columns of the weight, or a copy in `buffer`.
    MBF_INLINE T* columns(int r, int64_t first, int64_t count, T* buffer) const {
      if (first + count <= plain_columns_) return plain_[r] + first;
      read_columns(tensor_.weight, group_, row_ + r, first, count, buffer);
      return buffer;
    }

    // Adds the strip that begins with this column to what is to be fetched.
    void ask_for(int64_t column, PrefetchQueue<T>& queue) const {
      const int64_t columns = std::min<int64_t>(kSharedStrip, plain_columns_ - column);
      if (columns > 0) queue.add(plain_, rows_, column, columns);
    }

    MBF_INLINE void write_back(int r, int64_t first, int64_t count, const T* values,
                               const T* buffer) const {
      if (values == buffer) write_columns(tensor_.weight, group_, row_ + r, first, count, values);
    }

    // The last column, if it is that of a joined bias.
    T bias(int r) const {
      T value;
      read_columns(tensor_.bias, group_, row_ + r, 0, 1, &value);
      return value;
    }
    void set_bias(int r, T value) const {
      write_columns(tensor_.bias, group_, row_ + r, 0, 1, &value);
    }

   private:
    const RowTensor tensor_;
    int64_t group_, row_;
    int rows_;
    int64_t plain_columns_;
    T* plain_[kSharedRows] = {};
  };

  // The parameters of a layer that have a gradient.
  static MBF_INLINE RowTensor moving(const SharedStep& job, int64_t l) {
    RowTensor params = job.params[l];
    if (job.grads[l].weight.data == nullptr) params.weight.data = nullptr;
    if (job.grads[l].bias.data == nullptr) params.bias.data = nullptr;
    return params;
  }

  // u = m P for `rows` rows, of which those up to a multiple of rows_of are computed. Columns
  // beyond `width` hold garbage up to the end of a vector.
  static MBF_INLINE void multiply(const T* m, const T* p, int stride, int width, int rows, T* u,
                                  PrefetchQueue<T>& next) {
    const int vectors = (width + L - 1) / L;
    for (int v = 0; v < vectors; v += kMostVectors) {
      with_vectors(std::min(kMostVectors, vectors - v), [&](auto n) MBF_INLINE_LAMBDA {
        multiply_panel<decltype(n)::value>(m, p + v * L, stride, width, rows, u + v * L, next);
      });
    }
  }

  template <int N>
  static __attribute__((noinline)) void multiply_panel(const T* m, const T* p, int stride,
                                                       int depth, int rows, T* u,
                                                       PrefetchQueue<T>& next) {
    constexpr int R = rows_of(N);
    for (int row = 0; row < rows; row += R) {
      V sums[R][N];
      clear(sums);
      row_product<V, R, N>(
          [&](int r, int k) MBF_INLINE_LAMBDA { return splat(m[(row + r) * kStride + k]); },
          [&](int k, int n) MBF_INLINE_LAMBDA { return V::load(p + k * stride + n * L); }, depth,
          sums);
      next.fetch_some();
      MBF_UNROLL
      for (int r = 0; r < R; ++r) {
        MBF_UNROLL
        for (int n = 0; n < N; ++n) sums[r][n].store(u + (row + r) * kStride + n * L);
      }
    }
  }

  // --- norms ------------------------------------------------------------------------------------

  // Adds the squares of a piece; zero if they are not finite.
  static double finite_square(const T* values, int count) {
    const T sum = square_sum(values, count);
    if (sizeof(T) == 4 && !(sum > T(1e-30) && sum < T(1e30))) {
      double wide = 0;
      for (int i = 0; i < count; ++i) wide += static_cast<double>(values[i]) * values[i];
      return std::isfinite(wide) ? wide : 0.0;
    }
    return std::isfinite(sum) ? static_cast<double>(sum) : 0.0;
  }

  static double direction_square(const SharedLayer& layer, int64_t piece, int64_t end, int count,
                                 const T* direction) {
    const T whole = square_sum(direction, count);
    if (whole > T(1e-30) && whole < T(1e30)) return static_cast<double>(whole);
    double sum = 0;
    for (int64_t p = piece; p < end; ++p) {
      sum += finite_square(direction + (p - piece) * layer.width, layer.piece_width(p));
    }
    return sum;
  }

  // The squared norm of clip(a m / (sqrt(v / weight) + 1e-8), -1, 1) over the pieces whose momenta
  // are finite.
  static double adam_square(const SharedStep& job, int64_t l, int64_t g, int64_t r, int64_t piece,
                            int64_t end, const T* momenta) {
    const SharedLayer& layer = job.layer[l];
    const int64_t column = piece * layer.width;
    const int count = static_cast<int>(std::min(layer.columns, end * layer.width) - column);
    T buffer[kSharedStrip];
    const T* v = plain_row<T>(job.squares[l], layer, g, r, column, count);
    if (v == nullptr) {
      read_row(job.squares[l], layer, g, r, column, count, buffer);
      v = buffer;
    }
    const double* weights = job.weights + layer.block(g, piece);
    if (std::all_of(weights, weights + (end - piece), [&](double w) { return w == *weights; })) {
      const T sum = adam_sum(job, *weights, momenta, v, count);
      if (std::isfinite(sum)) return static_cast<double>(sum);
    }
    double total = 0;
    for (int64_t p = piece; p < end; ++p) {
      const int64_t start = (p - piece) * layer.width;
      const T sum =
          adam_sum(job, weights[p - piece], momenta + start, v + start, layer.piece_width(p));
      if (std::isfinite(sum)) total += static_cast<double>(sum);
    }
    return total;
  }

  // NaN if a momentum is not finite.
  static MBF_INLINE T adam_sum(const SharedStep& job, double weight, const T* momenta, const T* v,
                               int count) {
    const double correction = job.scalars.momentum_correction;
    const double inverse_weight = weight > 0 ? 1.0 / weight : 1.0;
    return sum_of(count, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
      using X = decltype(x);
      const X momentum = load(x, momenta + i);
      const X root = square_root(broadcast<X>(inverse_weight) * load(x, v + i));
      const X ratio = broadcast<X>(correction) * momentum * reciprocal(root + broadcast<X>(1e-8));
      return at_most(ratio * ratio, broadcast<X>(1)) + broadcast<X>(0) * momentum;
    });
  }

  // --- the second pass --------------------------------------------------------------------------

  static MBF_INLINE T* direction_row(const SharedPass& pass, int64_t l, int64_t g, int64_t r) {
    const SharedLayer& layer = pass.job.layer[l];
    return static_cast<T*>(pass.job.directions) + pass.direction_start[l] +
           (g * layer.rows + r) * direction_stride(layer);
  }

  // Past the cache, if all directions together do not fit into it anyway: whole cache lines.
  static MBF_INLINE void keep(const SharedPass& pass, T* out, const T* direction, int count) {
    constexpr int kLine = 64 / static_cast<int>(sizeof(T));
    const int offset = static_cast<int>(reinterpret_cast<uintptr_t>(out) % 64 / sizeof(T));
    const int head = std::min(count, (kLine - offset) % kLine);
    const int lines = pass.stream_directions ? (count - head) / kLine : 0;
    const int body = lines == 0 ? 0 : head;
    std::copy_n(direction, body, out);
    for (int i = body; i < body + lines * kLine; i += L) {
      stream_lanes(V::load(direction + i), out + i);
    }
    std::copy_n(direction + body + lines * kLine, count - body - lines * kLine,
                out + body + lines * kLine);
  }

  static void move_rescaled(const SharedPass& pass, int64_t l, int64_t g, int64_t r, int64_t column,
                            int64_t count, const T* direction, T* buffer) {
    const SharedStep& job = pass.job;
    const RowTensor params = moving(job, l);
    read_row(params, job.layer[l], g, r, column, count, buffer);
    rescaled(job, pass.scales[l], buffer, direction + column, count);
    write_row(params, job.layer[l], g, r, column, count, buffer);
  }

  // Where a direction is so small that the factor which rescales it does not fit float32, it is
  // multiplied in double.
  static void rescaled(const SharedStep& job, double scale, T* w, const T* u, int64_t count) {
    const double rate = job.scalars.lr * scale;
    const T decay = static_cast<T>(job.scalars.lr * job.scalars.weight_decay);
    if (std::abs(rate) < 1e30) {
      for_elements(count, [&](auto x, int64_t i) MBF_INLINE_LAMBDA {
        using X = decltype(x);
        const X now = load(x, w + i);
        const X change = broadcast<X>(rate) * load(x, u + i) + broadcast<X>(decay) * now;
        store(now - change, w + i);
      });
      return;
    }
    for (int64_t i = 0; i < count; ++i) {
      const T change = static_cast<T>(rate * static_cast<double>(u[i]));
      w[i] = w[i] - (change + decay * w[i]);
    }
  }
};

}  // namespace
}  // namespace mbf
