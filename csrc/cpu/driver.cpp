#include "driver.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <vector>

#include "isa.h"

namespace mbf {
namespace {

// Multiply-adds below which a second thread costs more than it saves (some 10 microseconds).
constexpr int64_t kThreadWork = 1 << 16;

int64_t grain_tiles(int64_t work_per_block) {
  return std::max<int64_t>(1, kThreadWork / (kTileBlocks * work_per_block));
}

// Multiply-adds per block.
int64_t block_work(const TileJob& job) {
  const int64_t d = job.block_size;
  int64_t work = 0;
  if (!job.update.empty()) work += d * d;
  if (!job.invert.empty()) work += d * d * d / 2 + d * d;
  if (job.step) work += d * d + 4 * d;
  return std::max<int64_t>(work, 1);
}

TileRange hull(TileRange a, TileRange b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}

// Adds up the sums of a tensor's tiles in tile order, so that threads do not change the result.
template <class PerTile>
double sum_over_tensor(const TileJob& job, int64_t tensor, PerTile per_tile) {
  double sum = 0;
  for (int64_t tile = job.tile_start[tensor]; tile < job.tile_start[tensor + 1]; ++tile) {
    sum += per_tile(tile);
  }
  return sum;
}

// Turns the relative damping of the tensors to be inverted into absolute damping. It is at least
// kLeast, so that a tensor whose gradients are all zero has an inverse.
std::vector<double> damping_of_tensors(const TileJob& job) {
  constexpr double kLeast = 1e-30;
  std::vector<double> damping(job.tensors);
  for (int64_t t = 0; t < job.tensors; ++t) {
    const bool needed =
        job.tile_start[t] < job.invert.last && job.tile_start[t + 1] > job.invert.first;
    if (!needed) continue;
    const double trace =
        sum_over_tensor(job, t, [&](int64_t tile) { return job.tallies[tile].trace; });
    const double elements = static_cast<double>(job.blocks[t]) * job.block_size;
    damping[t] = std::max(job.damping.of(t) * trace / elements, kLeast);
  }
  return damping;
}

// Sets the factors that rescale the directions of tensors first .. last - 1 to their target norms,
// which are refreshed first if the job asks for it.
void set_scales(const TileJob& job, int64_t first, int64_t last, std::vector<double>& scales) {
  for (int64_t t = first; t < last; ++t) {
    if (job.grads[t].data == nullptr) continue;
    if (job.refresh_targets) {
      job.target_norms.values[t] =
          std::sqrt(sum_over_tensor(job, t, [&](int64_t tile) { return job.norms[tile].adam; }));
    }
    const double square =
        sum_over_tensor(job, t, [&](int64_t tile) { return job.norms[tile].direction; });
    scales[t] = square > 0 ? job.target_norms.of(t) / std::sqrt(square) : 0.0;
  }
}

// One past the last tensor of the round that begins with `first`: as many tensors as job.directions
// has room for.
int64_t end_of_round(const TileJob& job, int64_t first) {
  int64_t last = first + 1;
  while (last < job.tensors &&
         job.tile_start[last + 1] - job.tile_start[first] <= job.direction_tiles) {
    ++last;
  }
  return last;
}

}  // namespace

int64_t last_level_cache_bytes() {
  static const int64_t bytes = [] {
    // The cache that one core can fill. On some machines sysconf adds up all caches of the socket.
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

void run(const TileJob& given, ParallelFor parallel_for) {
  const EntryPoints& kernels = current_kernels().own.of(given.float64);
  const auto run_tiles = [&](const TilePass& pass, TileRange range) {
    if (range.empty()) return;
    parallel_for(range.first, range.last, grain_tiles(block_work(pass.job)),
                 [&](int64_t first, int64_t last) { kernels.run_tiles(pass, first, last); });
  };

  TilePass pass{given};
  TileJob& job = pass.job;
  // A bfloat16 P is written half a cache line at a time, which is slow with streaming stores.
  const int64_t elements = static_cast<int64_t>(job.block_size) * (job.block_size + 1) / 2;
  const int64_t inverted = job.invert.last - job.invert.first;
  const int64_t state_bytes = inverted * kTileBlocks * elements * (job.float64 ? 16 : 8);
  pass.stream_inverse =
      !job.step && job.inverse_format != Format::BFloat16 && state_bytes > last_level_cache_bytes();

  std::vector<double> damping;
  if (!job.invert.empty() && job.relative_damping) {
    // Relative damping needs the trace of a tensor's whole G: the update becomes a pass of its own.
    TilePass updating = pass;
    updating.job.invert = {};
    updating.job.step = false;
    run_tiles(updating, job.update);
    job.update = {};
    damping = damping_of_tensors(job);
    job.damping = {damping.data(), false, false};
  }

  if (!job.rescales()) {
    run_tiles(pass,
              job.step ? TileRange{0, job.tile_start[job.tensors]} : hull(job.update, job.invert));
    return;
  }
  // In rounds of a few tensors, whose directions are still in cache for the second pass.
  std::vector<double> scales(job.tensors);
  pass.scales = scales.data();
  for (int64_t first = 0, last; first < job.tensors; first = last) {
    last = end_of_round(job, first);
    const TileRange round{job.tile_start[first], job.tile_start[last]};
    if (round.empty()) continue;
    pass.first_direction = round.first;
    run_tiles(pass, round);
    set_scales(job, first, last, scales);
    parallel_for(round.first, round.last, grain_tiles(4 * job.block_size),
                 [&](int64_t from, int64_t to) { kernels.apply_directions(pass, from, to); });
  }
}

void run(const DenseJob& job, ParallelFor parallel_for) {
  const EntryPoints& kernels = current_kernels().own.of(job.float64);
  const int64_t d = job.block_size;
  const int64_t groups = (job.count + kTileBlocks - 1) / kTileBlocks;
  if (groups == 0) return;
  parallel_for(0, groups, grain_tiles(d * d * d / 2 + 2 * d * d),
               [&](int64_t first, int64_t last) { kernels.invert_dense(job, first, last); });
}

}  // namespace mbf
