// csrc/cuda/plan.cpp on the host: launches cover every block once, whatever the list of tensors.
// No tensor exists: pointers are made up, and sizes may be larger than any memory.
#include <cstring>
#include <map>
#include <numeric>
#include <vector>

#include "../../csrc/cuda/plan.h"
#include "report.h"

using namespace mbf;
using namespace mbf::cuda;

namespace {

// A job with everything in it, on tensors that are only addresses.
struct Example {
  std::vector<int64_t> blocks, starts;
  std::vector<BlockView> params, grads, momenta;
  std::vector<double> damping;
  TileJob job{};
  std::vector<double> absolute_damping;

  static void* address(uint64_t x) { return reinterpret_cast<void*>(x); }

  Example(int d, std::vector<int64_t> counts) : blocks(std::move(counts)) {
    starts.assign(1, 0);
    for (int64_t count : blocks) {
      starts.push_back(starts.back() + (count + kTileBlocks - 1) / kTileBlocks);
    }
    const int64_t n = static_cast<int64_t>(blocks.size());
    for (int64_t t = 0; t < n; ++t) {
      const auto view = [&](uint64_t base) {
        return BlockView{address(base + 64 * t),
                         Format::Float32,
                         true,
                         std::max<int64_t>(1, blocks[t]),
                         0,
                         d,
                         1};
      };
      params.push_back(view(uint64_t{1} << 40));
      grads.push_back(view(uint64_t{2} << 40));
      momenta.push_back(view(uint64_t{3} << 40));
      damping.push_back(0.5 + static_cast<double>(t));
    }
    job.block_size = d;
    job.tensors = n;
    job.tile_start = starts.data();
    job.blocks = blocks.data();
    job.update = job.invert = {0, starts.back()};
    job.step = true;
    job.params = params.data();
    job.grads = grads.data();
    job.momenta = momenta.data();
    job.stats = address(uint64_t{4} << 40);
    job.inverse = address(uint64_t{5} << 40);
    job.damping = {damping.data(), false, false};
    job.scalars.lr = 0.5;
  }

  void with_targets() {
    job.target_norms = {static_cast<double*>(address(uint64_t{6} << 40)), false, true};
    job.directions = address(uint64_t{7} << 40);
    job.norms = static_cast<TileNorms*>(address(uint64_t{8} << 40));
  }

  std::vector<Launch> launches() {
    absolute_damping.resize(damping_room(job));
    return plan(job, absolute_damping.data());
  }
};

template <class P>
const P& parameters(const Launch& launch) {
  return *reinterpret_cast<const P*>(launch.parameters.data());
}

template <class P>
const typename P::Entry* entries(const P& p) {
  return reinterpret_cast<const typename P::Entry*>(p.pool);
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Checks that every launch is well formed and that the segments of each tensor are in `range`, in
// order and without gaps. Returns how many blocks they have.
template <class P>
int64_t check_segments(const Example& example, const std::vector<Launch>& launches, Kernel kernel,
                       int64_t unit_tiles, TileRange range) {
  std::map<int64_t, int64_t> next_block;  // per tensor
  int64_t total = 0;
  for (const Launch& launch : launches) {
    if (launch.kernel != kernel) continue;
    CHECK(launch.parameters.size() == sizeof(P) && sizeof(P) <= 32764, "%zu bytes", sizeof(P));
    CHECK(launch.grid > 0 && launch.grid <= 0x7fffffffu, "grid %u", launch.grid);
    const P& p = parameters<P>(launch);
    CHECK(p.count > 0, "an empty launch");
    const size_t used = p.count * sizeof(typename P::Entry) + p.strides * sizeof(Strides);
    CHECK(used <= P::kPool, "entries and strides overlap: %zu of %zu", used, P::kPool);
    int64_t unit = 0;
    for (uint32_t i = 0; i < p.count; ++i) {
      const auto& segment = entries(p)[i];
      const int64_t t = segment.tensor;
      CHECK(segment.first_unit == unit, "segment %u starts at %u, not %ld", i, segment.first_unit,
            static_cast<long>(unit));
      CHECK(segment.block % kTileBlocks == 0, "segment %u starts inside a tile", i);
      CHECK(segment.tile == example.starts[t] + segment.block / kTileBlocks, "tile of %u", i);
      CHECK(segment.tile >= range.first, "tile before the range");
      const int64_t tiles = ceil_div(segment.blocks, kTileBlocks);
      CHECK(segment.tile + tiles <= range.last, "tile after the range");
      CHECK(segment.blocks > 0 && segment.blocks <= (1u << 30), "%u blocks", segment.blocks);
      CHECK(segment.block + segment.blocks <= example.blocks[t], "more blocks than tensor %ld has",
            static_cast<long>(t));
      if (next_block.count(t)) {
        CHECK(segment.block == next_block[t], "tensor %ld: a gap", static_cast<long>(t));
      }
      bool moves = true;
      if constexpr (requires { p.job.step; }) moves = p.job.step;
      CHECK(segment.params == (moves ? example.params[t].data : nullptr), "params of tensor %ld",
            static_cast<long>(t));
      next_block[t] = segment.block + segment.blocks;
      unit += ceil_div(tiles, unit_tiles);
      total += segment.blocks;
    }
    CHECK(unit == launch.grid, "%ld thread blocks in a grid of %u", static_cast<long>(unit),
          launch.grid);
  }
  return total;
}

int64_t total_blocks(const Example& example) {
  return std::accumulate(example.blocks.begin(), example.blocks.end(), int64_t{0});
}

int count(const std::vector<Launch>& launches, Kernel kernel) {
  int n = 0;
  for (const Launch& launch : launches) n += launch.kernel == kernel;
  return n;
}

// Tiles per thread block of a kernel that updates or steps, and of one that inverts.
int unit_tiles_of(int d) { return d <= kMaxThreadBlock ? kThreadTiles : kPairTiles; }
int inverse_tiles_of(int d) { return d <= kMaxThreadBlock ? kThreadTiles : 1; }

Kernel inverting(int d) { return d <= kMaxThreadBlock ? Kernel::Run : Kernel::Refresh; }

void test_ordinary_lists() {
  for (int d = 1; d <= kMaxBlock; ++d) {
    Example example(d, {17, 0, 1, 16, 4000});
    const auto launches = example.launches();
    CHECK(launches.size() == (d <= kMaxThreadBlock ? 1 : 2), "d=%d: %zu launches", d,
          launches.size());
    CHECK(launches[0].kernel == inverting(d), "d=%d", d);
    for (const Launch& launch : launches) {
      CHECK(launch.shared_bytes <= 48u << 10, "d=%d: %u bytes", d, launch.shared_bytes);
      CHECK(launch.threads % 32 == 0 && launch.threads <= 512, "d=%d", d);
    }
    const TileRange all{0, example.starts.back()};
    auto found =
        check_segments<RunParameters>(example, launches, inverting(d), inverse_tiles_of(d), all);
    CHECK(found == total_blocks(example), "d=%d: %ld blocks", d, static_cast<long>(found));
    if (d > kMaxThreadBlock) {
      found = check_segments<RunParameters>(example, launches, Kernel::Step, unit_tiles_of(d), all);
      CHECK(found == total_blocks(example), "d=%d: %ld blocks", d, static_cast<long>(found));
    }
    const auto& p = parameters<RunParameters>(launches[0]);
    for (uint32_t i = 0; i < p.count; ++i) {
      const Segment& segment = entries(p)[i];
      CHECK(segment.damping == 0.5 + segment.tensor, "damping of tensor %u", segment.tensor);
      CHECK(segment.natural[0].place == kContiguous, "strides of tensor %u", segment.tensor);
    }
  }
}

void test_nothing_to_do() {
  Example empty(9, {});
  CHECK(empty.launches().empty(), "no tensors");
  Example zero(9, {0, 0});
  CHECK(zero.launches().empty(), "empty tensors");
  Example absent(9, {5, 7});
  for (BlockView& view : absent.grads) view.data = nullptr;
  absent.with_targets();
  absent.job.relative_damping = true;
  CHECK(absent.launches().empty(), "no gradients");
  Example idle(9, {5, 7});
  idle.job.step = false;
  idle.job.update = idle.job.invert = {};
  CHECK(idle.launches().empty(), "no work");
  CHECK(plan(DenseJob{9, false, 0, nullptr, nullptr, nullptr, 0.0}).empty(), "no matrices");
}

void test_absent_gradients() {
  Example example(9, {40, 50, 60});
  example.grads[1].data = nullptr;
  const auto launches = example.launches();
  const auto found = check_segments<RunParameters>(example, launches, Kernel::Run, kThreadTiles,
                                                   {0, example.starts.back()});
  CHECK(found == 100, "%ld blocks", static_cast<long>(found));
}

void test_ranges() {
  for (int d : {9, 25}) {
    Example example(d, {40, 0, 50, 1000});  // tiles 0-2, 3-6, 7-69
    TileJob& job = example.job;
    job.step = false;
    job.update = {1, 4};
    job.invert = {2, 8};
    const auto launches = example.launches();
    const auto found =
        check_segments<RunParameters>(example, launches, inverting(d), inverse_tiles_of(d), {1, 8});
    // The last 24 blocks of the first tensor, all of the third, the first tile of the last.
    CHECK(found == 24 + 50 + 16, "d=%d: %ld blocks", d, static_cast<long>(found));
    job.step = true;
    job.invert = {};
    job.update = {};
    CHECK(example.launches()[0].kernel == Kernel::Step, "a step alone");
  }
}

void test_more_tensors_than_a_launch_holds() {
  for (int d : {9, 25}) {
    Example example(d, std::vector<int64_t>(5000, 33));
    example.with_targets();
    example.job.relative_damping = true;
    CHECK(damping_room(example.job) == 5000, "room for damping");
    const auto launches = example.launches();
    const TileRange all{0, example.starts.back()};
    // The update is a pass of its own; the inversion uses the damping that follows from it. The
    // step of large blocks is another pass.
    const auto pass = [&](Kernel kernel, bool updates, bool steps, int tiles) {
      std::vector<Launch> chosen;
      for (const Launch& launch : launches) {
        if (launch.kernel != kernel) continue;
        const RunHeader& job = parameters<RunParameters>(launch).job;
        if (!job.update.empty() == updates && job.step == steps) chosen.push_back(launch);
      }
      CHECK(chosen.size() == 12, "%zu launches", chosen.size());
      const auto found = check_segments<RunParameters>(example, chosen, kernel, tiles, all);
      CHECK(found == 5000 * 33, "%ld blocks", static_cast<long>(found));
    };
    pass(Kernel::Run, true, false, unit_tiles_of(d));
    pass(inverting(d), false, d == 9, inverse_tiles_of(d));
    if (d == 25) pass(Kernel::Step, false, true, unit_tiles_of(d));
    const auto applied = check_segments<ApplyParameters>(example, launches, Kernel::Apply,
                                                         ceil_div(8192, kTileBlocks * d), all);
    CHECK(applied == 5000 * 33, "%ld blocks", static_cast<long>(applied));
    int64_t damped = 0;
    for (const Launch& launch : launches) {
      if (launch.kernel != Kernel::Damping) continue;
      const auto& p = parameters<DampingParameters>(launch);
      CHECK(launch.grid == p.count, "one thread block per tensor");
      for (uint32_t i = 0; i < p.count; ++i) {
        const DampedTensor& tensor = entries(p)[i];
        CHECK(tensor.tensor == damped && tensor.tiles == 3 && tensor.elements == 33.0 * d,
              "tensor %u", tensor.tensor);
        ++damped;
      }
    }
    CHECK(damped == 5000, "%ld tensors", static_cast<long>(damped));
  }
}

void test_tensors_beyond_31_bits() {
  // 2^33 blocks are more than 32 bits count; with d = 9 they have more than 2^36 elements.
  for (int d : {1, 9, 64}) {
    const int64_t huge = (int64_t{1} << 33) + 5;
    Example example(d, {3, huge, 17});
    example.with_targets();
    example.job.invert = {};
    const auto launches = example.launches();
    const TileRange all{0, example.starts.back()};
    const auto found =
        check_segments<RunParameters>(example, launches, Kernel::Run, unit_tiles_of(d), all);
    CHECK(found == huge + 20, "d=%d: %ld blocks", d, static_cast<long>(found));
    const auto applied = check_segments<ApplyParameters>(example, launches, Kernel::Apply,
                                                         ceil_div(8192, kTileBlocks * d), all);
    CHECK(applied == huge + 20, "d=%d: %ld blocks", d, static_cast<long>(applied));
    for (const Launch& launch : launches) {
      if (launch.kernel != Kernel::Run) continue;
      const auto& p = parameters<RunParameters>(launch);
      for (uint32_t i = 0; i < p.count; ++i) {
        // All thread blocks of a tensor add up its norms, whatever its segments and launches.
        const Segment& segment = entries(p)[i];
        const int64_t tiles = example.starts[segment.tensor + 1] - example.starts[segment.tensor];
        CHECK(segment.tensor_units == ceil_div(tiles, unit_tiles_of(d)), "segment %u", i);
        CHECK(segment.block / kTileBlocks % unit_tiles_of(d) == 0, "segment %u", i);
      }
    }
    for (const Launch& launch : launches) {
      if (launch.kernel != Kernel::Apply) continue;
      const auto& p = parameters<ApplyParameters>(launch);
      for (uint32_t i = 0; i < p.count; ++i) {
        const ApplySegment& segment = entries(p)[i];
        const int64_t t = segment.tensor;
        CHECK(segment.tensor_tile == example.starts[t], "the norm of tensor %ld",
              static_cast<long>(t));
      }
    }
  }
  // More thread blocks than a grid has.
  Example many(25, std::vector<int64_t>(4, int64_t{1} << 34));
  const auto launches = many.launches();
  CHECK(count(launches, Kernel::Refresh) > 1, "%zu launches", launches.size());
  const auto found =
      check_segments<RunParameters>(many, launches, Kernel::Refresh, 1, {0, many.starts.back()});
  CHECK(found == int64_t{1} << 36, "%ld blocks", static_cast<long>(found));
}

void test_strides() {
  // 300 tensors with different strides need more room for strides than one launch has.
  Example example(9, std::vector<int64_t>(300, 20));
  for (int64_t t = 0; t < 300; ++t) {
    for (BlockView* view : {&example.params[t], &example.grads[t], &example.momenta[t]}) {
      view->contiguous = false;
      view->inner = 4 + t % 290;
      view->outer_stride = 9 * view->inner;
      view->inner_stride = 1;
      view->element_stride = view->inner;
    }
    example.grads[t].contiguous = t % 2 == 0;
  }
  const auto launches = example.launches();
  CHECK(launches.size() == 2, "%zu launches", launches.size());
  const auto found = check_segments<RunParameters>(example, launches, Kernel::Run, kThreadTiles,
                                                   {0, example.starts.back()});
  CHECK(found == 300 * 20, "%ld blocks", static_cast<long>(found));
  for (const Launch& launch : launches) {
    const auto& p = parameters<RunParameters>(launch);
    const auto* end = reinterpret_cast<const Strides*>(p.pool + RunParameters::kPool);
    for (uint32_t i = 0; i < p.count; ++i) {
      const Segment& segment = entries(p)[i];
      CHECK(segment.natural[0].place > 0 && segment.natural[0].place <= p.strides, "place");
      CHECK(segment.natural[2].place == segment.natural[0].place, "the same strides once");
      CHECK((segment.natural[1].place == kContiguous) == (segment.tensor % 2 == 0), "grads");
      const Strides& strides = end[-static_cast<int>(segment.natural[0].place)];
      CHECK(strides.inner == 4 + segment.tensor % 290 && strides.inner_stride == 1 &&
                strides.outer_stride == 9 * strides.inner &&
                strides.element_stride == strides.inner,
            "strides of tensor %u", segment.tensor);
    }
  }
}

void test_dense() {
  for (int d : {9, 25}) {
    const int64_t per_unit = inverse_tiles_of(d) * kTileBlocks;
    for (int64_t matrices : {int64_t{1}, per_unit, per_unit + 1, int64_t{1} << 39}) {
      const auto launches = plan(DenseJob{d, false, matrices, nullptr, nullptr, nullptr, 0.25});
      int64_t found = 0;
      for (const Launch& launch : launches) {
        DenseParameters p;
        CHECK(launch.parameters.size() == sizeof p, "%zu bytes", launch.parameters.size());
        std::memcpy(&p, launch.parameters.data(), sizeof p);
        CHECK(reinterpret_cast<uintptr_t>(p.info) == static_cast<uintptr_t>(4 * found), "info");
        CHECK(reinterpret_cast<uintptr_t>(p.matrices) == static_cast<uintptr_t>(4 * d * d * found),
              "matrices");
        CHECK(launch.grid == ceil_div(p.count, per_unit), "grid");
        CHECK(p.damping == 0.25f && p.block_size == d, "scalars");
        found += p.count;
      }
      CHECK(found == matrices, "%ld of %ld", static_cast<long>(found), static_cast<long>(matrices));
    }
  }
}

}  // namespace

int main() {
  test_ordinary_lists();
  test_nothing_to_do();
  test_absent_gradients();
  test_ranges();
  test_more_tensors_than_a_launch_holds();
  test_tensors_beyond_31_bits();
  test_strides();
  test_dense();
  return finish();
}
