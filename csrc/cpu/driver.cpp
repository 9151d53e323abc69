#include "driver.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "isa.h"

namespace mbf {
namespace {

// Multiply-adds below which a second thread costs more than it brings (some 10 microseconds).
constexpr int64_t kThreadWork = 1 << 16;

int64_t grain_tiles(int64_t work_per_block) {
  return std::max<int64_t>(1, kThreadWork / (kTileBlocks * work_per_block));
}

int64_t block_work(const TileJob& job) {
  const int64_t d = job.block_size;
  int64_t work = 0;
  if (job.update) work += d * d;
  if (job.invert) work += d * d * d / 2 + d * d;
  if (job.step) work += d * d + 4 * d;
  return std::max<int64_t>(work, 1);
}

}  // namespace

int64_t last_level_cache_bytes() {
  static const int64_t bytes = [] {
    // The cache one core can fill. sysconf adds up every cache of the socket on some machines.
    int64_t found = 0;
    for (const char* index : {"3", "2"}) {
      std::ifstream file(std::string("/sys/devices/system/cpu/cpu0/cache/index") + index + "/size");
      int64_t size = 0;
      char unit = 0;
      if (found == 0 && file >> size) {
        file >> unit;
        found = size << (unit == 'K' ? 10 : unit == 'M' ? 20 : 0);
      }
    }
    return found > 0 ? found : int64_t{32} << 20;
  }();
  return bytes;
}

void run(TileJob job, bool float64, const double* target_norms, ParallelFor parallel_for) {
  const KernelSet& set = current_kernels();
  const Kernels& kernels = float64 ? set.f64 : set.f32;
  const int64_t tiles = job.tile_start[job.tensors];
  if (tiles == 0) return;

  // In bfloat16 half a line per number goes out at a time, which streaming stores do badly.
  const int64_t numbers = static_cast<int64_t>(job.block_size) * (job.block_size + 1) / 2;
  const int64_t state_bytes = tiles * kTileBlocks * numbers * (float64 ? 16 : 8);
  job.stream_inverse = job.invert && !job.step && job.inverse_format != Format::BFloat16 &&
                       state_bytes > last_level_cache_bytes();
  if (target_norms == nullptr) job.directions = nullptr;

  parallel_for(0, tiles, grain_tiles(block_work(job)),
               [&](int64_t first, int64_t last) { kernels.run_tiles(job, first, last); });
  if (target_norms == nullptr || !job.step) return;

  // Partial sums were taken per tile and are added here in order: threads do not change the result.
  std::vector<double> scale(job.tensors);
  for (int64_t t = 0; t < job.tensors; ++t) {
    double sum = 0;
    for (int64_t tile = job.tile_start[t]; tile < job.tile_start[t + 1]; ++tile) {
      sum += job.squared_norms[tile];
    }
    scale[t] = sum > 0 ? target_norms[t] / std::sqrt(sum) : 0.0;
  }
  job.scale = scale.data();
  parallel_for(0, tiles, grain_tiles(4 * job.block_size),
               [&](int64_t first, int64_t last) { kernels.apply_directions(job, first, last); });
}

void run(const DenseJob& job, bool float64, ParallelFor parallel_for) {
  const KernelSet& set = current_kernels();
  const Kernels& kernels = float64 ? set.f64 : set.f32;
  const int64_t d = job.block_size;
  const int64_t groups = (job.count + kTileBlocks - 1) / kTileBlocks;
  if (groups == 0) return;
  parallel_for(0, groups, grain_tiles(d * d * d / 2 + 2 * d * d),
               [&](int64_t first, int64_t last) { kernels.invert_dense(job, first, last); });
}

}  // namespace mbf
