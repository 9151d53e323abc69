// The CPU driver and the kernels of one instruction set, on real threads, against long double.
//
// Links with csrc/cpu/driver.cpp, one csrc/cpu/isa_*.cpp and one_level.cpp. Needs neither torch nor
// Python, so that it also runs under sanitizers, in an emulator and with emulated instructions.
#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "../../csrc/cpu/driver.h"
#include "../../csrc/cpu/isa.h"
#include "driver_scene.h"
#include "parallel.h"
#include "report.h"

namespace {

using mbf::TileJob;
using mbf::TileRange;

Wide norm(const std::vector<Wide>& x) {
  Wide sum = 0;
  for (Wide v : x) sum += v * v;
  return std::sqrt(sum);
}

// Compares a scene after a job with the scene before it. Each operation is checked with the inputs
// that it found, so that bounds need no condition numbers: G from the old G, P from the new G, the
// step from the new P.
template <class T>
class Check {
 public:
  Check(const char* what, const Scene<T>& before, const Scene<T>& after, const TileJob& job)
      : what_(what), before_(before), after_(after), job_(job), d_(after.d) {}

  void run() {
    for (int64_t t = 0; t < job_.tensors; ++t) {
      const bool absent = job_.grads != nullptr && t == Scene<T>::kAbsent;
      const int64_t tiles = job_.tile_start[t + 1] - job_.tile_start[t];
      for (int64_t slot = 0; slot < tiles * kTileBlocks; ++slot) {
        const int64_t tile = job_.tile_start[t] + slot / kTileBlocks;
        const int lane = static_cast<int>(slot % kTileBlocks);
        const bool padding = slot >= job_.blocks[t];
        check_statistics(t, slot, tile, lane, !absent && !padding && job_.update.contains(tile));
        check_inverse(t, slot, tile, lane, !absent && !padding && job_.invert.contains(tile));
      }
      check_step(t, !absent && job_.step);
    }
  }

 private:
  static constexpr Wide kUnit = std::numeric_limits<T>::epsilon() / 2;

  void check_statistics(int64_t t, int64_t b, int64_t tile, int lane, bool updated) {
    for (int i = 0; i < d_; ++i) {
      for (int j = 0; j <= i; ++j) {
        const Wide old = before_.g(tile, lane, i, j), found = after_.g(tile, lane, i, j);
        Wide expected = old, bound = 0;
        if (updated) {
          const Wide product = before_.grads[t].at(b, i) * before_.grads[t].at(b, j);
          const Wide beta = job_.beta;
          expected = beta * old + (1 - beta) * product;
          bound = 4 * kUnit * (beta * std::abs(old) + (1 - beta) * std::abs(product));
        }
        const bool same = std::isnan(old) ? std::isnan(found) : std::abs(found - expected) <= bound;
        CHECK(same, "%s d=%d tensor %d block %d: G(%d, %d) is %Lg, expected %Lg", what_, d_, int(t),
              int(b), i, j, found, expected);
      }
    }
  }

  // ||A P - I|| <= c d u ||A|| ||P||, where P may have been rounded to bfloat16.
  void check_inverse(int64_t t, int64_t b, int64_t tile, int lane, bool inverted) {
    const bool bad = inverted && std::isnan(after_.g(tile, lane, 0, 0));
    if (job_.invert.contains(tile)) {
      const int info = after_.info[tile * kTileBlocks + lane];
      CHECK((info != 0) == bad, "%s d=%d tensor %d block %d: info %d", what_, d_, int(t), int(b),
            info);
    }
    if (!inverted || bad) {
      for (int i = 0; i < d_; ++i) {
        for (int j = 0; j <= i; ++j) {
          CHECK(after_.p(tile, lane, i, j) == before_.p(tile, lane, i, j),
                "%s d=%d tensor %d block %d: P(%d, %d) was written", what_, d_, int(t), int(b), i,
                j);
        }
      }
      return;
    }
    const Wide weight = job_.debias ? Wide(after_.tallies[tile].weight) : 1;
    std::vector<Wide> a(d_ * d_), p(d_ * d_), error(d_ * d_);
    for (int i = 0; i < d_; ++i) {
      for (int j = 0; j < d_; ++j) {
        a[i * d_ + j] = after_.g(tile, lane, i, j) / weight + (i == j ? damping(t) : 0);
        p[i * d_ + j] = after_.p(tile, lane, i, j);
      }
    }
    for (int i = 0; i < d_; ++i) {
      for (int j = 0; j < d_; ++j) {
        Wide sum = i == j ? -1 : 0;
        for (int k = 0; k < d_; ++k) sum += a[i * d_ + k] * p[k * d_ + j];
        error[i * d_ + j] = sum;
      }
    }
    // In bfloat16 the diagonal is raised by (d - 1) u at most, and rounded up by another 2 u.
    const Wide rounding =
        job_.inverse_format == Format::BFloat16 ? (d_ + 2) * unit_of(Format::BFloat16) : 0;
    const Wide bound = (8 * (d_ + 1) * kUnit + rounding) * norm(a) * norm(p);
    CHECK(norm(error) <= bound, "%s d=%d tensor %d block %d: ||A P - I|| = %Lg > %Lg", what_, d_,
          int(t), int(b), norm(error), bound);
  }

  Wide damping(int64_t t) const {
    const Wide given = before_.damping[t];
    if (!job_.relative_damping) return given;
    Wide trace = 0;
    for (int64_t b = 0; b < job_.blocks[t]; ++b) {
      const int64_t tile = job_.tile_start[t] + b / kTileBlocks;
      for (int i = 0; i < d_; ++i) {
        const Wide weight = after_.tallies[tile].weight;
        // A tensor that was never updated has the least damping that there is.
        if (weight > 0) trace += after_.g(tile, int(b % kTileBlocks), i, i) / weight;
      }
    }
    return std::max(given * trace / (static_cast<Wide>(job_.blocks[t]) * d_), Wide(1e-30));
  }

  void check_step(int64_t t, bool stepped) {
    const Wide lr = job_.scalars.lr, momentum = job_.scalars.momentum;
    const Wide decay = job_.scalars.weight_decay;
    const int64_t count = job_.blocks[t] * d_;
    // `ahead` is what P is multiplied with.
    std::vector<Wide> m(count), ahead(count), u(count), magnitude(count);
    Wide adam = 0;
    for (int64_t b = 0; b < job_.blocks[t]; ++b) {
      const int64_t tile = job_.tile_start[t] + b / kTileBlocks;
      const int lane = static_cast<int>(b % kTileBlocks);
      for (int i = 0; i < d_; ++i) {
        const Wide old = before_.momenta[t].at(b, i), grad = before_.grads[t].at(b, i);
        m[b * d_ + i] = stepped ? momentum * old + grad : old;
        const Wide bound = stepped ? 4 * kUnit * (std::abs(old) + std::abs(grad)) : 0;
        const Wide found = after_.momenta[t].at(b, i);
        CHECK(std::abs(found - m[b * d_ + i]) <= bound,
              "%s d=%d tensor %d block %d: M(%d) is %Lg, expected %Lg", what_, d_, int(t), int(b),
              i, found, m[b * d_ + i]);
        const Wide v = after_.g(tile, lane, i, i) / after_.tallies[tile].weight;
        ahead[b * d_ + i] = m[b * d_ + i];
        if (job_.scalars.nesterov != 0) ahead[b * d_ + i] = momentum * m[b * d_ + i] + grad;
        const Wide x =
            job_.scalars.momentum_correction * ahead[b * d_ + i] / (std::sqrt(v) + 1e-8L);
        adam += std::min(x * x, Wide(1));
      }
      for (int i = 0; i < d_; ++i) {
        for (int j = 0; j < d_; ++j) {
          const Wide product = after_.p(tile, lane, i, j) * ahead[b * d_ + j];
          u[b * d_ + i] += product;
          magnitude[b * d_ + i] += std::abs(product);
          if (job_.scalars.nesterov != 0) {  // its terms may cancel
            const Wide terms = std::abs(m[b * d_ + j]) + std::abs(before_.grads[t].at(b, j));
            magnitude[b * d_ + i] += std::abs(after_.p(tile, lane, i, j)) * terms;
          }
        }
      }
    }
    const Wide product_error = 2 * (d_ + 4) * kUnit;
    Wide scale = 1, scale_error = 0;
    if (stepped && job_.rescales()) {
      Wide target = before_.targets[t];
      if (job_.refresh_targets) {
        const Wide found = after_.targets[t], expected = std::sqrt(adam);
        CHECK(std::abs(found - expected) <= (d_ + 16) * kUnit * expected,
              "%s d=%d tensor %d: target norm %Lg, expected %Lg", what_, d_, int(t), found,
              expected);
        target = found;
      }
      scale = target / norm(u);
      scale_error = (d_ + 16) * kUnit + product_error * norm(magnitude) / norm(u);
    }
    const Wide storage = unit_of(before_.params[t].format());
    for (int64_t k = 0; k < count; ++k) {
      const Wide w = before_.params[t].at(k / d_, int(k % d_));
      const Wide found = after_.params[t].at(k / d_, int(k % d_));
      Wide expected = w, bound = 0;
      if (stepped) {
        const Wide move = scale * std::abs(u[k]) + decay * std::abs(w);
        expected = w - lr * (scale * u[k] + decay * w);
        bound = lr * (scale * (product_error * magnitude[k] + scale_error * std::abs(u[k]))) +
                8 * kUnit * (std::abs(w) + lr * move) + 1.01L * storage * std::abs(expected);
      }
      CHECK(std::abs(found - expected) <= bound,
            "%s d=%d tensor %d element %d: W is %Lg, expected %Lg, bound %Lg", what_, d_, int(t),
            int(k), found, expected, bound);
    }
  }

  const char* what_;
  const Scene<T>& before_;
  const Scene<T>& after_;
  const TileJob& job_;
  int d_;
};

// Runs the same job on threads and without, checks the result and that both have the same bits.
template <class T, class Change>
void run_checked(const char* what, Scene<T>& scene, Change change) {
  const Scene<T> before = scene;
  Scene<T> alone = scene;
  TileJob job = alone.job();
  change(job, alone);
  mbf::run(job, serial);
  job = scene.job();
  change(job, scene);
  mbf::run(job, threaded);
  Check<T>(what, before, scene, job).run();
  CHECK(scene.same_results(alone), "%s d=%d: threads change the result", what, scene.d);
}

template <class T>
void test_tiles(int d, Format inverse_format) {
  std::mt19937 random(d);
  Scene<T> scene(d, inverse_format, random);
  const TileRange all{0, scene.tiles()};
  run_checked("update", scene, [&](TileJob& job, Scene<T>&) { job.update = all; });
  run_checked("fused", scene, [&](TileJob& job, Scene<T>&) {
    job.update = job.invert = all;
    job.step = job.debias = true;
  });
  run_checked("parts", scene, [&](TileJob& job, Scene<T>&) {
    job.update = {2, 7};
    job.invert = {1, 4};
    job.step = true;
  });
  run_checked("step", scene, [&](TileJob& job, Scene<T>&) { job.step = true; });
  run_checked("step, nesterov", scene, [&](TileJob& job, Scene<T>&) {
    job.step = true;
    job.scalars.nesterov = 1;
  });
  const auto rescaled = [&](TileJob& job, Scene<T>& s) {
    job.step = true;
    job.target_norms = {s.targets.data(), false, false};
  };
  run_checked("rescaled", scene, rescaled);
  run_checked("refreshed", scene, [&](TileJob& job, Scene<T>& s) {
    rescaled(job, s);
    job.update = job.invert = all;
    job.relative_damping = job.debias = job.refresh_targets = true;
    job.scalars.nesterov = 1;
  });
  // Lane 5 of the first tile and lane 2 of the padded tile of the same tensor.
  for (int64_t place : {int64_t{5}, 2 * kTileBlocks * int64_t{scene.elements()} + 2}) {
    scene.stats[place] = std::numeric_limits<T>::quiet_NaN();
  }
  run_checked("failed", scene, [&](TileJob& job, Scene<T>&) {
    job.grads = nullptr;
    job.invert = all;
  });
}

// Streaming stores are not seen by the address sanitizer: guards stand on both sides. The driver
// streams only what exceeds the cache, so the kernels are called without it.
template <class T>
void test_streamed(int d) {
  std::mt19937 random(d);
  Scene<T> scene(d, Scene<T>::kOwn, random);
  const TileRange all{0, scene.tiles()};
  TileJob job = scene.job();
  job.update = all;
  mbf::run(job, serial);
  const Scene<T> before = scene;
  constexpr size_t kGuard = 256;
  CacheLines guarded(scene.inverse.size() + 2 * kGuard);
  const auto guards_are = [&](int value) {
    const auto first = std::count(guarded.data(), guarded.data() + kGuard, value);
    const unsigned char* end = guarded.data() + guarded.size();
    return first + std::count(end - kGuard, end, value) == 2 * kGuard;
  };
  std::memset(guarded.data(), 0xa5, guarded.size());
  std::memset(guarded.data() + kGuard, 0, scene.inverse.size());
  mbf::TilePass pass;
  pass.job = scene.job();
  pass.job.grads = nullptr;
  pass.job.invert = all;
  pass.job.inverse = guarded.data() + kGuard;
  pass.stream_inverse = true;
  threaded(0, all.last, 1, [&](int64_t first, int64_t last) {
    mbf::current_kernels().own.of(pass.job.float64).run_tiles(pass, first, last);
  });
  CHECK(guards_are(0xa5), "streamed d=%d: written outside the inverses", d);
  std::memcpy(scene.inverse.data(), guarded.data() + kGuard, scene.inverse.size());
  Check<T>("streamed", before, scene, pass.job).run();
}

template <class T>
void test_dense(int d, int64_t count) {
  std::mt19937 random(d);
  std::normal_distribution<double> normal;
  const Wide unit = std::numeric_limits<T>::epsilon() / 2;
  const int size = d * d;
  std::vector<T> matrices(count * size), inverses(count * size);
  std::vector<int32_t> info(count, -1);
  for (int64_t b = 0; b < count; ++b) {
    std::vector<double> x(d);
    for (auto& e : x) e = normal(random);
    // Only the lower triangle is read.
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        const double entry = x[i] * x[j] + (i == j ? 1.0 : 0.0);
        matrices[b * size + i * d + j] = j <= i ? T(entry) : std::numeric_limits<T>::quiet_NaN();
      }
    }
  }
  const int64_t bad = count > 1 ? count - 2 : -1;
  if (bad >= 0) matrices[bad * size] = T(-3);
  mbf::run(
      mbf::DenseJob{d, sizeof(T) == 8, count, matrices.data(), inverses.data(), info.data(), 0.25},
      threaded);
  for (int64_t b = 0; b < count; ++b) {
    const T* p = &inverses[b * size];
    CHECK((info[b] != 0) == (b == bad), "dense d=%d matrix %d: info %d", d, int(b), info[b]);
    if (b == bad) {
      CHECK(std::all_of(p, p + size, [](T e) { return std::isnan(e); }), "dense d=%d: no NaN", d);
      continue;
    }
    std::vector<Wide> a(size), error(size);
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        const int at = i >= j ? i * d + j : j * d + i;
        a[i * d + j] = matrices[b * size + at] + (i == j ? 0.25L : 0.0L);
      }
    }
    for (int i = 0; i < d; ++i) {
      for (int j = 0; j < d; ++j) {
        Wide sum = i == j ? -1 : 0;
        for (int k = 0; k < d; ++k) sum += a[i * d + k] * p[k * d + j];
        error[i * d + j] = sum;
      }
    }
    const Wide bound = 8 * (d + 1) * unit * norm(a) * norm(std::vector<Wide>(p, p + size));
    CHECK(norm(error) <= bound, "dense d=%d matrix %d: ||A P - I|| = %Lg > %Lg", d, int(b),
          norm(error), bound);
  }
}

// Several threads use the driver for the first time and at the same time, each on its own tensors
// and in parallel itself.
void test_concurrent_callers() {
  constexpr int kCallers = 4, kSize = 11;
  const auto step = [](Scene<float>& scene) {
    TileJob job = scene.job();
    job.update = job.invert = {0, scene.tiles()};
    job.step = job.relative_damping = job.refresh_targets = true;
    job.target_norms = {scene.targets.data(), false, false};
    mbf::run(job, threaded);
  };
  std::mt19937 random(1);
  const Scene<float> before(kSize, Format::Float32, random);
  std::vector<Scene<float>> scenes(kCallers, before);
  std::vector<std::thread> callers;
  for (auto& scene : scenes) callers.emplace_back([&] { step(scene); });
  for (auto& caller : callers) caller.join();
  Scene<float> expected = before;
  step(expected);
  for (const auto& scene : scenes) {
    CHECK(scene.same_results(expected), "concurrent callers: results differ");
  }
}

template <class T>
void test_size(int d) {
  test_tiles<T>(d, Scene<T>::kOwn);
  test_streamed<T>(d);
  for (int64_t count : {1, 16, 35}) test_dense<T>(d, count);
}

}  // namespace

void test_shared_driver();

int main() {
  test_concurrent_callers();
  test_shared_driver();
  // Every size whose loops may be expanded, and sizes around the widths of lanes and panels.
  for (int d : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 16, 17, 31, 33, 64}) {
    test_size<float>(d);
    test_tiles<float>(d, Format::BFloat16);
  }
  for (int d : {1, 2, 3, 4, 5, 9, 16, 33}) test_size<double>(d);
  std::printf("%s: ", mbf::current_kernels().isa);
  return finish();
}
