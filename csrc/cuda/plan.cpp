#include "plan.h"

#include <algorithm>

#include "packer.h"

namespace mbf::cuda {
namespace {

// The most tiles of a segment: kernels count its blocks in 32 bits, here up to 2^30.
constexpr int64_t kSegmentTiles = int64_t{1} << 26;
// A segment starts where norms are looked for: where a thread block could start.
static_assert(kSegmentTiles % kThreadTiles == 0 && kSegmentTiles % kPairTiles == 0);

// Elements per thread block in the second pass: enough to amortise summing the tensor's norms.
constexpr int64_t kApplyElements = 8192;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

bool one_block_per_thread(int block_size) { return block_size <= kMaxThreadBlock; }

// What a thread block of a kernel takes.
struct Unit {
  int tiles;
  uint32_t threads;
  uint32_t shared_bytes;  // dynamic
};

Unit unit_of(Kernel kernel, int block_size) {
  if (one_block_per_thread(block_size)) return {kThreadTiles, kThreadBlockThreads, 0};
  if (kernel == Kernel::Step || kernel == Kernel::Run) {
    const int floats = kPairTiles * pair_stage(block_size);
    return {kPairTiles, kPairThreads, static_cast<uint32_t>(floats * sizeof(float))};
  }
  const TeamShape& team = kTeams[team_kind(block_size)];
  return {1, static_cast<uint32_t>(team.lanes * kTileBlocks),
          static_cast<uint32_t>(team_bytes(team, block_size))};
}

// Values the kernels read on the device, or null: then every entry of a launch carries its own.
const double* device_values(const PerTensor& per_tensor) {
  return per_tensor.on_device ? per_tensor.values : nullptr;
}

double host_value(const PerTensor& per_tensor, int64_t tensor) {
  return per_tensor.on_device ? 0.0 : per_tensor.of(tensor);
}

bool is_absent(const TileJob& job, int64_t tensor) {
  return job.grads != nullptr && job.grads[tensor].data == nullptr;
}

// Calls f(tensor, first, last) for tiles first .. last - 1 of every tensor that is not absent:
// those in `range`, split at multiples of kSegmentTiles from the start of the tensor.
template <class F>
void for_segments(const TileJob& job, TileRange range, F f) {
  for (int64_t t = 0; t < job.tensors; ++t) {
    const int64_t start = job.tile_start[t];
    const int64_t first = std::max(start, range.first);
    const int64_t last = std::min(job.tile_start[t + 1], range.last);
    if (first >= last || is_absent(job, t)) continue;
    for (int64_t tile = first; tile < last;) {
      const int64_t stop = start + ((tile - start) / kSegmentTiles + 1) * kSegmentTiles;
      f(t, tile, std::min(stop, last));
      tile = stop;
    }
  }
}

uint32_t blocks_of(const TileJob& job, int64_t tensor, int64_t first, int64_t last) {
  const int64_t start = job.tile_start[tensor];
  const int64_t end = std::min(job.blocks[tensor], (last - start) * kTileBlocks);
  return static_cast<uint32_t>(end - (first - start) * kTileBlocks);
}

TileRange hull(TileRange a, TileRange b) {
  if (a.empty()) return b;
  if (b.empty()) return a;
  return {std::min(a.first, b.first), std::max(a.last, b.last)};
}

RunHeader run_header(const TileJob& job) {
  RunHeader header{};
  header.stats = static_cast<float*>(job.stats);
  header.tallies = job.tallies;
  header.inverse = job.inverse;
  header.info = job.info;
  if (job.rescales()) {
    header.directions = static_cast<float*>(job.directions);
    header.norms = job.norms;
    header.refresh_targets = job.refresh_targets;
  }
  header.damping = device_values(job.damping);
  header.damping_per_tensor = !job.damping.one_for_all;
  header.controls = job.controls;
  header.update = job.update;
  header.invert = job.invert;
  header.beta = job.beta;
  header.short_beta = static_cast<float>(job.beta);
  header.short_rest = static_cast<float>(1.0 - job.beta);
  header.scalars = job.scalars.map([](double x) { return static_cast<float>(x); });
  header.block_size = job.block_size;
  header.over_block_size = 0xffffffffu / static_cast<uint32_t>(job.block_size) + 1;
  header.step = job.step;
  header.short_inverse = job.inverse_format == Format::BFloat16;
  header.debias = job.debias;
  return header;
}

void plan_tiles(const TileJob& job, Kernel kernel, std::vector<Launch>& launches) {
  const Unit unit = unit_of(kernel, job.block_size);
  const TileRange range =
      job.step ? TileRange{0, job.tile_start[job.tensors]} : hull(job.update, job.invert);
  Packer<RunParameters> packer(run_header(job));
  for_segments(job, range, [&](int64_t t, int64_t first, int64_t last) {
    Segment segment{};
    segment.params = job.step ? job.params[t].data : nullptr;
    segment.grads = job.grads != nullptr ? job.grads[t].data : nullptr;
    segment.momenta = job.step ? job.momenta[t].data : nullptr;
    segment.tile = first;
    segment.block = (first - job.tile_start[t]) * kTileBlocks;
    segment.blocks = blocks_of(job, t, first, last);
    segment.tensor = static_cast<uint32_t>(t);
    const int64_t tensor_tiles = job.tile_start[t + 1] - job.tile_start[t];
    segment.tensor_units = static_cast<uint32_t>(ceil_div(tensor_tiles, unit.tiles));
    segment.damping = job.invert.empty() ? 0.0 : host_value(job.damping, t);
    packer.add(segment, ceil_div(last - first, unit.tiles),
               {job.step ? &job.params[t] : nullptr, job.grads != nullptr ? &job.grads[t] : nullptr,
                job.step ? &job.momenta[t] : nullptr});
  });
  packer.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back(
        {kernel, job.block_size, units, unit.threads, unit.shared_bytes, std::move(bytes)});
  });
}

void plan_run(const TileJob& given, std::vector<Launch>& launches) {
  TileJob job = given;
  if (!job.invert.empty() && !one_block_per_thread(job.block_size)) {
    // Teams invert, and update on the way; pairs step. The launches have other thread blocks.
    job.step = false;
    plan_tiles(job, Kernel::Refresh, launches);
    job.step = given.step;
    job.update = job.invert = {};
    if (!job.step) return;
  }
  const bool refreshes = !job.update.empty() || !job.invert.empty();
  plan_tiles(job, refreshes || job.refresh_targets ? Kernel::Run : Kernel::Step, launches);
}

void plan_damping(const TileJob& job, double* absolute_damping, std::vector<Launch>& launches) {
  Packer<DampingParameters> packer(
      {job.tallies, device_values(job.damping), absolute_damping, !job.damping.one_for_all});
  for (int64_t t = 0; t < job.tensors; ++t) {
    const int64_t first = job.tile_start[t];
    const int64_t last = job.tile_start[t + 1];
    const bool needed = first < last && first < job.invert.last && last > job.invert.first;
    if (!needed || is_absent(job, t)) continue;
    DampedTensor tensor{};
    tensor.tile = first;
    tensor.tiles = last - first;
    tensor.elements = static_cast<double>(job.blocks[t]) * job.block_size;
    tensor.damping = host_value(job.damping, t);
    tensor.tensor = static_cast<uint32_t>(t);
    packer.add(tensor, 1, {});
  }
  packer.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back(
        {Kernel::Damping, job.block_size, units, kTensorThreads, 0, std::move(bytes)});
  });
}

void plan_apply(const TileJob& job, std::vector<Launch>& launches) {
  ApplyHeader header{};
  header.directions = static_cast<const float*>(job.directions);
  header.norms = job.norms;
  header.target_norms = job.target_norms.values;
  header.controls = job.controls;
  header.scalars = job.scalars;
  header.block_size = job.block_size;
  header.unit_tiles = static_cast<int32_t>(ceil_div(kApplyElements, kTileBlocks * job.block_size));
  header.target_per_tensor = !job.target_norms.one_for_all;
  header.refresh_targets = job.refresh_targets;
  Packer<ApplyParameters> packer(header);
  for_segments(job, {0, job.tile_start[job.tensors]}, [&](int64_t t, int64_t first, int64_t last) {
    const int64_t start = job.tile_start[t];
    ApplySegment segment{};
    segment.params = job.params[t].data;
    segment.tile = first;
    segment.block = (first - start) * kTileBlocks;
    segment.tensor_tile = start;
    segment.blocks = blocks_of(job, t, first, last);
    segment.tensor = static_cast<uint32_t>(t);
    packer.add(segment, ceil_div(last - first, header.unit_tiles), {&job.params[t]});
  });
  packer.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back({Kernel::Apply, job.block_size, units, kTensorThreads, 0, std::move(bytes)});
  });
}

}  // namespace

int64_t damping_room(const TileJob& job) {
  return job.relative_damping && !job.invert.empty() ? job.tensors : 0;
}

std::vector<Launch> plan(const TileJob& given, double* absolute_damping) {
  std::vector<Launch> launches;
  TileJob job = given;
  if (damping_room(job) > 0) {
    // Relative damping needs the trace of a tensor's whole G: the update becomes a pass of its own.
    TileJob updating = job;
    updating.invert = {};
    updating.step = false;
    if (!job.update.empty()) plan_run(updating, launches);
    plan_damping(job, absolute_damping, launches);
    job.update = {};
    job.damping = {absolute_damping, false, true};
  }
  plan_run(job, launches);
  if (job.rescales()) plan_apply(job, launches);
  return launches;
}

std::vector<Launch> plan(const DenseJob& job) {
  std::vector<Launch> launches;
  if (job.count == 0) return launches;
  const Unit unit = unit_of(Kernel::Dense, job.block_size);
  const int64_t per_unit = unit.tiles * kTileBlocks;
  // A grid has up to 2^31 - 1 thread blocks.
  const int64_t at_once = kMaxUnits * per_unit;
  const int64_t size = static_cast<int64_t>(job.block_size) * job.block_size;
  for (int64_t first = 0; first < job.count; first += at_once) {
    DenseParameters p{};
    p.matrices = static_cast<const float*>(job.matrices) + first * size;
    p.inverses = static_cast<float*>(job.inverses) + first * size;
    p.info = job.info + first;
    p.count = std::min(at_once, job.count - first);
    p.damping = static_cast<float>(job.damping);
    p.block_size = job.block_size;
    const auto* bytes = reinterpret_cast<const unsigned char*>(&p);
    launches.push_back({Kernel::Dense,
                        job.block_size,
                        static_cast<uint32_t>(ceil_div(p.count, per_unit)),
                        unit.threads,
                        unit.shared_bytes,
                        {bytes, bytes + sizeof p}});
  }
  return launches;
}

}  // namespace mbf::cuda
