// The CPU driver for blocks that rows share, against long double; part of the test of the driver.
#include <cmath>
#include <random>
#include <vector>

#include "../../csrc/cpu/driver.h"
#include "driver_scene.h"
#include "parallel.h"
#include "report.h"

namespace {

using mbf::RowTensor;
using mbf::RowView;
using mbf::SharedLayer;

constexpr double kBeta = 0.75;
const mbf::StepScalars<double> kScalars{0.1, 0.9, 0.01, 0.5, 1.0};

// A tensor of rows in memory of exactly its size.
struct Natural {
  Natural(int64_t rows, int64_t columns, Format format, std::mt19937& random)
      : rows(rows), columns(columns), format(format), bytes(rows * columns * bytes_of(format)) {
    std::normal_distribution<double> normal;
    for (int64_t i = 0; i < rows * columns; ++i) write(at(i), format, normal(random));
  }
  unsigned char* at(int64_t i) { return bytes.data() + i * bytes_of(format); }
  const unsigned char* at(int64_t i) const { return bytes.data() + i * bytes_of(format); }
  Wide value(int64_t row, int64_t column) const { return read(at(row * columns + column), format); }

  RowView view(int64_t group_rows) {
    RowView view{};
    view.data = bytes.data();
    view.format = format;
    view.columns = columns;
    view.group_stride = group_rows * columns;
    view.row_inner = group_rows;
    view.row_stride = columns;
    view.inner = columns;
    view.inner_stride = 1;
    return view;
  }

  int64_t rows, columns;
  Format format;
  std::vector<unsigned char> bytes;
};

// One layer with its bias, and all that a step and an update take.
template <class T>
struct SharedScene {
  SharedScene(int64_t groups, int64_t rows, int64_t inputs, bool bias, int64_t width, Format format,
              std::mt19937& random)
      : own(sizeof(T) == 8 ? Format::Float64 : Format::Float32) {
    layer.groups = groups;
    layer.rows = rows;
    layer.columns = inputs + bias;
    layer.width = width;
    layer.pieces = (layer.columns + width - 1) / width;
    layer.bias = bias;
    const int64_t elements = layer.blocks() * width * width + mbf::kMatrixSlack;
    std::normal_distribution<double> normal;
    stats.assign(elements, T(0));
    inverse.assign(elements, T(0));
    for (auto& x : inverse) x = static_cast<T>(normal(random));
    weights.assign(layer.blocks(), 0.0);
    left_out.assign(layer.blocks(), 0);
    directions.assign(mbf::direction_elements(layer), T(0));
    for (auto* list : {&params, &grads, &momenta, &squares}) {
      const Format kind = list == &momenta || list == &squares ? own : format;
      list->emplace_back(groups * rows, inputs, kind, random);
      list->emplace_back(groups * rows, 1, kind, random);
    }
    for (int64_t i = 0; i < groups * rows; ++i) {
      for (auto& tensor : squares) {
        for (int64_t c = 0; c < tensor.columns; ++c) {
          unsigned char* at = tensor.at(i * tensor.columns + c);
          write(at, own, std::abs(static_cast<double>(read(at, own))));
        }
      }
    }
  }

  RowTensor tensor(std::vector<Natural>& list) {
    RowTensor found{};
    found.weight = list[0].view(layer.rows);
    if (layer.bias) found.bias = list[1].view(layer.rows);
    return found;
  }

  Wide value(const std::vector<Natural>& list, int64_t row, int64_t column) const {
    const bool of_bias = layer.bias && column == layer.columns - 1;
    return of_bias ? list[1].value(row, 0) : list[0].value(row, column);
  }

  void update() {
    const RowTensor d = tensor(grads), v = tensor(squares);
    mbf::SharedUpdate job{};
    job.float64 = sizeof(T) == 8;
    job.layers = 1;
    job.layer = &layer;
    job.last = layer.blocks();
    job.grads = &d;
    job.squares = &v;
    job.stats = stats.data();
    job.weights = weights.data();
    job.left_out = left_out.data();
    job.beta = kBeta;
    mbf::run(job, threaded);
  }

  void step(bool rescale, mbf::ParallelFor parallel_for = threaded) {
    const RowTensor w = tensor(params), d = tensor(grads), m = tensor(momenta), v = tensor(squares);
    mbf::SharedStep job{};
    job.float64 = sizeof(T) == 8;
    job.layers = 1;
    job.layer = &layer;
    job.params = &w;
    job.grads = &d;
    job.momenta = &m;
    job.inverse = inverse.data();
    job.scalars = kScalars;
    if (rescale) {
      job.target_norms = {&target, false, false};
      job.directions = directions.data();
      job.direction_room = static_cast<int64_t>(directions.size());
      job.refresh_targets = true;
      job.squares = &v;
      job.weights = weights.data();
    }
    mbf::run(job, parallel_for);
  }

  Format own;
  SharedLayer layer{};
  std::vector<T> stats, inverse, directions;
  std::vector<double> weights;
  std::vector<int64_t> left_out;
  double target = 0;
  std::vector<Natural> params, grads, momenta, squares;
};

template <class T>
void check_update(const SharedScene<T>& before, const SharedScene<T>& after) {
  const SharedLayer& layer = before.layer;
  const Wide unit = unit_of(before.own);
  for (int64_t g = 0; g < layer.groups; ++g) {
    for (int64_t p = 0; p < layer.pieces; ++p) {
      const int64_t column = p * layer.width;
      for (int64_t i = 0; i < layer.piece_width(p); ++i) {
        for (int64_t j = 0; j < layer.piece_width(p); ++j) {
          Wide sum = 0, size = 0;
          for (int64_t r = g * layer.rows; r < (g + 1) * layer.rows; ++r) {
            const Wide term = before.value(before.grads, r, column + i) *
                              before.value(before.grads, r, column + j);
            sum += term;
            size += std::abs(term);
          }
          const Wide wanted = (1 - kBeta) * sum / layer.rows;
          const T found = after.stats[layer.matrix(g, p) + i * layer.width + j];
          const Wide bound = (layer.rows + 8) * unit * size / layer.rows;
          CHECK(std::abs(found - wanted) <= bound, "G[%d, %d] of width %d: %g, wanted %Lg", int(i),
                int(j), int(layer.width), double(found), wanted);
        }
      }
    }
  }
}

template <class T>
void check_step(const SharedScene<T>& before, const SharedScene<T>& after, bool rescale) {
  const SharedLayer& layer = before.layer;
  const Wide unit = unit_of(before.own);
  const int64_t rows = layer.groups * layer.rows;
  // `ahead` is what P is multiplied with: the scalars have Nesterov's momentum.
  std::vector<Wide> u(rows * layer.columns), size(u.size()), m(u.size()), ahead(u.size());
  Wide norm = 0, adam = 0;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < layer.columns; ++c) {
      m[r * layer.columns + c] =
          kScalars.momentum * before.value(before.momenta, r, c) + before.value(before.grads, r, c);
      ahead[r * layer.columns + c] =
          kScalars.momentum * m[r * layer.columns + c] + before.value(before.grads, r, c);
    }
    for (int64_t c = 0; c < layer.columns; ++c) {
      const int64_t piece = c / layer.width, start = piece * layer.width;
      const T* inverse = before.inverse.data() + layer.matrix(r / layer.rows, piece);
      Wide& sum = u[r * layer.columns + c];
      for (int64_t k = 0; k < layer.piece_width(piece); ++k) {
        const Wide term =
            ahead[r * layer.columns + start + k] * inverse[k * layer.width + c - start];
        sum += term;
        size[r * layer.columns + c] += std::abs(term);
      }
      norm += sum * sum;
      const Wide v = before.value(before.squares, r, c) / before.weights[0];
      const Wide x =
          kScalars.momentum_correction * ahead[r * layer.columns + c] / (std::sqrt(v) + 1e-8L);
      adam += std::min<Wide>(x * x, 1);
    }
  }
  const Wide scale = rescale ? std::sqrt(adam / norm) : 1;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < layer.columns; ++c) {
      const Wide w = before.value(before.params, r, c);
      const Wide move =
          kScalars.lr * (scale * u[r * layer.columns + c] + kScalars.weight_decay * w);
      const Wide terms = std::abs(w) + scale * size[r * layer.columns + c];
      const Wide bound = (layer.width + 64) * unit * terms +
                         unit_of(before.params[0].format) * (std::abs(w) + std::abs(move));
      const Wide found = after.value(after.params, r, c);
      CHECK(std::abs(found - (w - move)) <= bound, "W[%d, %d] of width %d: %Lg, wanted %Lg", int(r),
            int(c), int(layer.width), found, w - move);
      CHECK(std::abs(after.value(after.momenta, r, c) - m[r * layer.columns + c]) <=
                8 * unit * (std::abs(m[r * layer.columns + c]) + 8),
            "M[%d, %d] of width %d", int(r), int(c), int(layer.width));
    }
  }
}

template <class T>
void test_width(int64_t width, Format format) {
  std::mt19937 random(static_cast<unsigned>(width));
  for (const bool bias : {false, true}) {
    for (const int64_t columns : {width, 2 * width + 1, 150 + width / 2}) {
      SharedScene<T> scene(2, 29, columns, bias, width, format, random);
      SharedScene<T> before = scene;
      scene.update();
      check_update(before, scene);
      for (const bool rescale : {false, true}) {
        before = scene;
        scene.step(rescale);
        check_step(before, scene, rescale);
        SharedScene<T> again = before;
        again.step(rescale, serial);
        CHECK(again.params[0].bytes == scene.params[0].bytes, "threads changed the bits");
      }
    }
  }
}

}  // namespace

void test_shared_driver() {
  for (int64_t width :
       {1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64, 65, 100, 127, 128, 129, 288}) {
    test_width<float>(width, Format::Float32);
  }
  for (int64_t width : {5, 16, 40}) {
    test_width<float>(width, Format::BFloat16);
    test_width<float>(width, Format::Float16);
  }
  for (int64_t width : {1, 8, 9, 64, 128, 136}) test_width<double>(width, Format::Float64);
}
