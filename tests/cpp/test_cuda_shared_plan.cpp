// csrc/cuda/shared_plan.cpp on the host: launches cover every row and column once, whatever the
// layers. No tensor exists: pointers are made up, and sizes may be larger than any memory.
#include <map>
#include <set>
#include <vector>

#include "../../csrc/cuda/shared_plan.h"
#include "report.h"

using namespace mbf;
using namespace mbf::cuda;

namespace {

void* address(uint64_t x) { return reinterpret_cast<void*>(x); }
int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

struct Size {
  int64_t groups, rows, columns, width;
  bool bias = false;
};

RowView contiguous(uint64_t base, int64_t rows, int64_t columns) {
  return {address(base), Format::Float32, columns, rows * columns, rows, 0, columns, columns, 0, 1};
}

// Jobs with everything in them, on tensors that are only addresses.
struct Example {
  std::vector<SharedLayer> layers;
  std::vector<RowTensor> params, grads, momenta, squares;
  SharedStep step{};
  SharedUpdate update{};
  int64_t blocks = 0;

  explicit Example(const std::vector<Size>& sizes) {
    int64_t elements = 0;
    for (const Size& s : sizes) {
      const int64_t pieces = ceil_div(s.columns, s.width);
      layers.push_back({s.groups, s.rows, s.columns, s.width, pieces, s.bias, blocks, elements});
      blocks += s.groups * pieces;
      elements += s.groups * pieces * s.width * s.width;
      uint64_t base = uint64_t{1} << 40;
      for (auto* list : {&params, &grads, &momenta, &squares}) {
        RowTensor tensor{contiguous(base + 64 * layers.size(), s.rows, s.columns - s.bias), {}};
        if (s.bias) tensor.bias = contiguous(base + (1 << 20), s.rows, 1);
        list->push_back(tensor);
        base += uint64_t{1} << 40;
      }
    }
    step.layers = update.layers = static_cast<int64_t>(layers.size());
    step.layer = update.layer = layers.data();
    step.params = params.data();
    step.grads = update.grads = grads.data();
    step.momenta = momenta.data();
    step.squares = update.squares = squares.data();
    step.inverse = address(uint64_t{5} << 40);
    update.first = 0;
    update.last = blocks;
    update.beta = 0.5;
  }

  void with_targets() {
    step.target_norms = {static_cast<double*>(address(uint64_t{6} << 40)), false, true};
    step.directions = address(uint64_t{7} << 40);
    step.refresh_targets = true;
  }
  std::vector<Launch> step_launches() { return plan(step, nullptr); }
  std::vector<Launch> update_launches() { return plan(update, nullptr); }
};

template <class P>
const P& parameters(const Launch& launch) {
  return *reinterpret_cast<const P*>(launch.parameters.data());
}

// Calls f(entry, units of the entry, parameters) for all launches of a kernel, which it checks.
template <class P, class F>
void for_entries(const std::vector<Launch>& launches, Kernel kernel, F f) {
  for (const Launch& launch : launches) {
    if (launch.kernel != kernel) continue;
    CHECK(launch.parameters.size() == sizeof(P) && sizeof(P) <= 32764, "%zu bytes", sizeof(P));
    CHECK(launch.grid > 0 && launch.grid <= 0x7fffffffu, "grid %u", launch.grid);
    const P& p = parameters<P>(launch);
    CHECK(p.count > 0, "an empty launch");
    const size_t used =
        p.count * sizeof(typename P::Entry) + p.strides * sizeof(typename P::Stride);
    CHECK(used <= P::kPool, "entries and strides overlap: %zu of %zu", used, P::kPool);
    const auto* list = reinterpret_cast<const typename P::Entry*>(p.pool);
    CHECK(list[0].first_unit == 0, "a gap before the first entry");
    for (uint32_t i = 0; i < p.count; ++i) {
      const uint32_t end = i + 1 < p.count ? list[i + 1].first_unit : launch.grid;
      CHECK(end > list[i].first_unit, "entry %u is empty", i);
      f(list[i], int64_t{end} - list[i].first_unit, p);
    }
  }
}

int count(const std::vector<Launch>& launches, Kernel kernel) {
  int n = 0;
  for (const Launch& launch : launches) n += launch.kernel == kernel;
  return n;
}

// Tasks of each layer in launches of a step, which must be in order and without gaps.
std::map<int64_t, int64_t> step_tasks(const Example& example, const std::vector<Launch>& launches,
                                      Kernel kernel) {
  std::map<int64_t, int64_t> tasks;
  for_entries<SharedStepParameters>(
      launches, kernel, [&](const SharedStepEntry& entry, int64_t units, const auto&) {
        const SharedLayer& layer = example.layers[entry.layer];
        CHECK(entry.task == tasks[entry.layer], "layer %u: a gap", entry.layer);
        CHECK(entry.shape.rows == layer.rows && entry.shape.columns == layer.columns &&
                  entry.shape.width == layer.width && entry.shape.matrix == layer.offset &&
                  entry.shape.first_block == layer.first_block,
              "shape of layer %u", entry.layer);
        tasks[entry.layer] += units;
      });
  return tasks;
}

// How many thread blocks cover all rows and columns of a layer in tiles of a step.
int64_t wanted_tasks(const SharedLayer& layer) {
  const Strip strip(layer.width, layer.pieces, kQuad);
  return layer.groups * ceil_div(layer.rows, step_rows(strip)) *
         ceil_div(layer.pieces, strip.pieces);
}

void test_steps_of_every_width() {
  for (int width = 1; width <= kMaxSharedBlock; ++width) {
    Example example({{1, 1000, 5 * width, width}, {3, 7, 2 * width - width / 2, width}});
    const auto plain = example.step_launches();
    CHECK(plain.size() == 1 && plain[0].kernel == Kernel::SharedStep, "width %d", width);
    CHECK(plain[0].threads == kStepThreads, "%u threads", plain[0].threads);
    CHECK(scratch_room(example.step) == 0, "scratch");
    example.with_targets();
    const auto launches = example.step_launches();
    CHECK(launches.size() == 3, "width %d: %zu launches", width, launches.size());
    CHECK(launches[1].kernel == Kernel::SharedScale && launches[1].grid == 2, "width %d", width);
    int64_t all = 0;
    for (Kernel kernel : {Kernel::SharedFirst, Kernel::SharedApply}) {
      const auto tasks = step_tasks(example, launches, kernel);
      all = 0;
      for (int l = 0; l < 2; ++l) {
        CHECK(tasks.at(l) == wanted_tasks(example.layers[l]), "width %d: %ld", width,
              static_cast<long>(tasks.at(l)));
        all += tasks.at(l);
      }
    }
    CHECK(scratch_room(example.step) == 2 + 2 * all, "width %d", width);
    const auto& scales = parameters<SharedScaleParameters>(launches[1]);
    const auto* entry = reinterpret_cast<const SharedScaleEntry*>(scales.pool);
    CHECK(entry[0].norms == 0 && entry[1].norms == entry[0].count, "norms follow each other");
    CHECK(entry[0].count + entry[1].count == all, "all norms");
  }
}

void test_directions_have_their_own_room() {
  Example example({{1, 10, 20, 20}, {2, 3, 33, 11}, {1, 4, 16, 16}});
  example.with_targets();
  example.grads[1].weight.data = nullptr;  // absent, but its room stays
  std::map<int64_t, int64_t> start;
  for_entries<SharedStepParameters>(example.step_launches(), Kernel::SharedFirst,
                                    [&](const SharedStepEntry& entry, int64_t, const auto&) {
                                      start[entry.layer] = entry.directions;
                                    });
  CHECK(start.size() == 2 && start[0] == 0 && start[2] == 10 * 32 + 6 * 48, "%ld",
        static_cast<long>(start[2]));
}

void test_nothing_to_do() {
  Example empty({{1, 0, 5, 5}, {1, 5, 0, 1}, {0, 5, 5, 5}});
  empty.with_targets();
  CHECK(empty.step_launches().empty() && empty.update_launches().empty(), "empty layers");
  Example absent({{1, 5, 5, 5}});
  absent.grads[0].weight.data = nullptr;
  CHECK(absent.step_launches().empty() && absent.update_launches().empty(), "no gradient");
  Example idle({{1, 5, 5, 5}});
  idle.update.last = 0;
  CHECK(idle.update_launches().empty(), "no blocks");
}

void test_parameters_without_a_gradient_do_not_move() {
  for (bool weight : {false, true}) {
    Example example({{1, 8, 5, 5, true}});
    (weight ? example.grads[0].weight : example.grads[0].bias).data = nullptr;
    for_entries<SharedStepParameters>(
        example.step_launches(), Kernel::SharedStep,
        [&](const SharedStepEntry& entry, int64_t, const auto&) {
          CHECK((entry.params.weight == nullptr) == weight, "weight");
          CHECK((entry.params.bias == nullptr) == !weight, "bias");
          CHECK(entry.momenta.weight != nullptr && entry.momenta.bias != nullptr, "momenta");
        });
  }
}

bool uses_quads(Example& example) {
  bool quads = false;
  for_entries<SharedStepParameters>(
      example.step_launches(), Kernel::SharedStep,
      [&](const SharedStepEntry& entry, int64_t, const auto&) { quads = entry.shape.quads; });
  return quads;
}

void test_16_byte_accesses_only_where_all_rows_allow_them() {
  const auto changed = [](auto change) {
    Example example({{2, 8, 64, 32}});
    change(example.params[0].weight, example.momenta[0].weight);
    return uses_quads(example);
  };
  using View = RowView&;
  CHECK(changed([](View, View) {}), "contiguous");
  CHECK(!changed([](View w, View) { w.data = address((uint64_t{1} << 40) + 4); }), "address");
  CHECK(!changed([](View, View m) { m.format = Format::BFloat16; }), "format");
  CHECK(!changed([](View w, View) { w.row_stride = 66; }), "rows");
  CHECK(changed([](View w, View) { w.row_stride = 68; }), "rows further apart");
  CHECK(!changed([](View, View m) { m.group_stride = 514; }), "groups");
  CHECK(!changed([](View w, View) { w.inner_stride = 2; }), "columns");
  Example narrow({{1, 8, 64, 18}});
  CHECK(!uses_quads(narrow), "pieces");
  Example odd({{1, 8, 62, 64}});
  CHECK(!uses_quads(odd), "row length");
  Example biased({{1, 8, 65, 68, true}});
  CHECK(uses_quads(biased), "a bias beside aligned rows");
}

void test_strides() {
  Example example(std::vector<Size>(300, {1, 20, 36, 36}));
  for (int64_t l = 0; l < 300; ++l) {
    for (auto* list : {&example.params, &example.grads, &example.momenta}) {
      RowView& view = (*list)[l].weight;
      view.inner = 9;
      view.inner_stride = 4 + l;
      view.outer_stride = 1;
      view.row_inner = 5;
      view.row_outer_stride = 1000;
    }
    // Two strides that are one: not worth a place in the pool.
    RowView& plain = example.momenta[l].weight;
    plain = contiguous(uint64_t{3} << 40, 20, 36);
    plain.row_inner = 4;
    plain.row_outer_stride = 4 * 36;
    plain.inner = 6;
    plain.outer_stride = 6;
  }
  const auto launches = example.step_launches();
  CHECK(count(launches, Kernel::SharedStep) > 1, "%zu launches", launches.size());
  int64_t found = 0;
  for_entries<SharedStepParameters>(
      launches, Kernel::SharedStep, [&](const SharedStepEntry& entry, int64_t, const auto& p) {
        ++found;
        CHECK(entry.natural[0].place > 0 && entry.natural[0].place <= p.strides, "place");
        CHECK(entry.natural[2].place == entry.natural[0].place, "the same strides once");
        CHECK(entry.natural[4].place == kContiguous, "contiguous momenta");
        const auto* end = reinterpret_cast<const RowStrides*>(p.pool + sizeof p.pool);
        const RowStrides& s = end[-static_cast<int>(entry.natural[0].place)];
        CHECK(s.inner == 9 && s.inner_stride == 4 + entry.layer && s.outer_stride == 1 &&
                  s.row_inner == 5 && s.row_outer_stride == 1000 && s.row_stride == 36,
              "strides of layer %u", entry.layer);
      });
  CHECK(found == 300, "%ld layers", static_cast<long>(found));
}

// Checks that the updated blocks are those of the job, each with all rows in one task per part.
void check_update(Example& example) {
  const auto launches = example.update_launches();
  std::set<std::pair<int64_t, int64_t>> averaged;  // block, parts
  std::map<int64_t, int64_t> rooms;                // where sums over parts are kept
  for_entries<SharedAverageParameters>(
      launches, Kernel::SharedAverage,
      [&](const SharedAverageEntry& entry, int64_t units, const auto&) {
        const int64_t size = partial_floats(static_cast<int>(round_up(entry.shape.width, kOctet)));
        for (int64_t b = entry.block; b < entry.block + units; ++b) {
          averaged.insert({entry.shape.first_block + b, entry.parts});
          const int64_t start = entry.partials + b * entry.parts * size;
          rooms[start] = start + entry.parts * size;
        }
      });
  int64_t end = 0;
  for (const auto& [start, stop] : rooms) {
    CHECK(start == end, "sums at %ld, not %ld", static_cast<long>(start), static_cast<long>(end));
    end = stop;
  }
  CHECK(scratch_room(example.update) == ceil_div(end, 2), "%ld doubles",
        static_cast<long>(scratch_room(example.update)));
  std::set<std::pair<int64_t, int64_t>> summed;
  for_entries<SharedUpdateParameters>(
      launches, Kernel::SharedUpdate,
      [&](const SharedUpdateEntry& entry, int64_t units, const auto&) {
        const SharedLayer& layer = example.layers[entry.layer];
        CHECK((entry.parts - 1) * entry.part_rows < layer.rows &&
                  entry.parts * entry.part_rows >= layer.rows,
              "parts of layer %u", entry.layer);
        const Strip strip(layer.width, layer.pieces, kOctet);
        const int64_t strips = ceil_div(layer.pieces, strip.pieces);
        CHECK(entry.task % (strips * entry.parts) == 0 && units % (strips * entry.parts) == 0,
              "layer %u: whole groups", entry.layer);
        const int64_t group = entry.task / (strips * entry.parts);
        const int64_t groups = units / (strips * entry.parts);
        for (int64_t b = group * layer.pieces; b < (group + groups) * layer.pieces; ++b) {
          const int64_t block = layer.first_block + b;
          if (block < example.update.first || block >= example.update.last) continue;
          CHECK(summed.insert({block, entry.parts}).second, "block %ld twice",
                static_cast<long>(block));
        }
      });
  CHECK(static_cast<int64_t>(summed.size()) == example.update.last - example.update.first,
        "%zu blocks", summed.size());
  for (const auto& own : summed) {
    CHECK((averaged.count(own) == 1) == (own.second > 1), "block %ld",
          static_cast<long>(own.first));
  }
}

void test_updates() {
  for (int width : {1, 8, 9, 64, 100, 128}) {
    Example example({{1, 1000, 5 * width, width},
                     {3, 7, 2 * width - width / 2, width},
                     {2, 100000, width, width}});
    check_update(example);
    for (int64_t first = 0; first < example.blocks; ++first) {
      example.update.first = first;
      example.update.last = std::min(first + 3, example.blocks);
      check_update(example);
    }
  }
}

void test_more_layers_than_a_launch_holds() {
  Example example(std::vector<Size>(1000, {1, 300, 10, 5, true}));
  example.with_targets();
  const auto launches = example.step_launches();
  CHECK(count(launches, Kernel::SharedFirst) == count(launches, Kernel::SharedApply), "passes");
  CHECK(count(launches, Kernel::SharedFirst) > 1, "one launch");
  const auto tasks = step_tasks(example, launches, Kernel::SharedApply);
  CHECK(tasks.size() == 1000, "%zu layers", tasks.size());
  check_update(example);
}

void test_layers_beyond_31_bits() {
  Example example({{1, int64_t{1} << 31, 5000, 64}, {int64_t{1} << 31, 1, 3, 3}});
  example.with_targets();
  const auto launches = example.step_launches();
  for (Kernel kernel : {Kernel::SharedFirst, Kernel::SharedApply}) {
    const auto tasks = step_tasks(example, launches, kernel);
    for (int l = 0; l < 2; ++l) {
      CHECK(tasks.at(l) == wanted_tasks(example.layers[l]), "%ld tasks of layer %d",
            static_cast<long>(tasks.at(l)), l);
    }
  }
  int64_t units = 0;
  for (const Launch& launch : example.update_launches()) {
    if (launch.kernel == Kernel::SharedUpdate) units += launch.grid;
  }
  CHECK(units == 256 * 79 + (int64_t{1} << 31), "%ld units", static_cast<long>(units));
}

}  // namespace

int main() {
  test_steps_of_every_width();
  test_directions_have_their_own_room();
  test_nothing_to_do();
  test_parameters_without_a_gradient_do_not_move();
  test_16_byte_accesses_only_where_all_rows_allow_them();
  test_strides();
  test_updates();
  test_more_layers_than_a_launch_holds();
  test_layers_beyond_31_bits();
  return finish();
}
