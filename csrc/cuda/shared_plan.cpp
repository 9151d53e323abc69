#include "shared_plan.h"

#include "packer.h"

namespace mbf::cuda {
namespace {

// The most tasks of an entry: more are split, lest they exceed a grid.
constexpr int64_t kEntryTasks = int64_t{1} << 30;

// Sums over parts of the rows are added up by a second kernel. A part has so many rows that reading
// them takes four times as long as writing its sums, and there are at most kMostParts.
constexpr int64_t kRowsPerColumn = 4;
constexpr int64_t kLeastRows = 128;
constexpr int64_t kMostParts = 256;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// A tensor of a layer in the form that Packer takes.
struct PlacedRows {
  Format format;
  bool contiguous;
  RowStrides strides;
};

RowStrides strides_of(const PlacedRows& rows) { return rows.strides; }

PlacedRows placed(const RowView& view, const SharedLayer& layer) {
  PlacedRows rows{view.format,
                  false,
                  {view.group_stride, view.row_inner, view.row_outer_stride, view.row_stride,
                   view.inner, view.outer_stride, view.inner_stride}};
  RowStrides& s = rows.strides;
  const bool one_row_stride =
      s.row_inner >= layer.rows || s.row_outer_stride == s.row_inner * s.row_stride;
  if (one_row_stride) s.row_inner = s.row_outer_stride = 0;
  const bool one_column_stride =
      s.inner >= view.columns || s.outer_stride == s.inner * s.inner_stride;
  if (one_column_stride && (s.inner_stride == 1 || view.columns <= 1)) {
    s.inner = s.outer_stride = s.inner_stride = 0;
  }
  rows.contiguous = s.row_inner == 0 && s.inner == 0 && s.row_stride == view.columns &&
                    (layer.groups == 1 || s.group_stride == layer.rows * view.columns);
  return rows;
}

bool is_empty(const SharedLayer& layer) {
  return layer.groups == 0 || layer.rows == 0 || layer.columns == 0;
}

// Whether every row of a tensor is made of aligned quads.
bool in_quads(const RowView& view, const PlacedRows& rows) {
  if (view.data == nullptr) return true;
  const RowStrides& s = rows.strides;
  return view.format == Format::Float32 && s.inner == 0 &&
         reinterpret_cast<uintptr_t>(view.data) % 16 == 0 && s.group_stride % kQuad == 0 &&
         s.row_outer_stride % kQuad == 0 && s.row_stride % kQuad == 0;
}

SharedShape shape_of(const SharedLayer& layer) {
  SharedShape shape{};
  shape.rows = layer.rows;
  shape.columns = layer.columns;
  shape.pieces = layer.pieces;
  shape.first_block = layer.first_block;
  shape.matrix = layer.offset;
  shape.width = static_cast<int32_t>(layer.width);
  shape.bias = layer.bias;
  shape.quads = layer.width % kQuad == 0 && (layer.columns - layer.bias) % kQuad == 0;
  return shape;
}

RowPointers pointers(const RowTensor& tensor) { return {tensor.weight.data, tensor.bias.data}; }

// The tensors of one layer in an entry: their places in the order of Entry::natural.
struct LayerTensors {
  const SharedLayer& layer;
  SharedShape shape;
  PlacedRows rows[8];
  const PlacedRows* used[8] = {};
  int count = 0;

  explicit LayerTensors(const SharedLayer& of) : layer(of), shape(shape_of(of)), rows() {}

  RowPointers add(const RowTensor* tensor) {
    if (tensor == nullptr) {
      count += 2;
      return {};
    }
    for (const RowView* view : {&tensor->weight, &tensor->bias}) {
      if (view->data != nullptr) {
        rows[count] = placed(*view, layer);
        used[count] = &rows[count];
        if (view == &tensor->weight) shape.quads = shape.quads && in_quads(*view, rows[count]);
      }
      ++count;
    }
    return pointers(*tensor);
  }
};

// Adds an entry for tasks first .. last - 1, or several.
template <class P>
void add_tasks(Packer<P>& packer, typename P::Entry entry, int64_t first, int64_t last,
               const LayerTensors& tensors) {
  const std::span<const PlacedRows* const> used(tensors.used, tensors.count);
  for (int64_t task = first; task < last; task += kEntryTasks) {
    entry.task = task;
    packer.add(entry, std::min(kEntryTasks, last - task), used);
  }
}

int64_t step_tasks(const SharedLayer& layer) {
  if (is_empty(layer)) return 0;
  const Strip strip(layer.width, layer.pieces, kQuad);
  return layer.groups * ceil_div(layer.rows, step_rows(strip)) *
         ceil_div(layer.pieces, strip.pieces);
}

bool steps(const SharedStep& job, int64_t l) {
  return !job.grads[l].absent() && !is_empty(job.layer[l]);
}

// The blocks of a layer that an update reaches, counted in the layer, and the parts of its rows.
struct UpdatedLayer {
  int64_t first = 0, last = 0;
  int64_t part_rows = 0, parts = 0;
  int64_t floats = 0;  // of the sums over a part, for one block

  UpdatedLayer(const SharedUpdate& job, int64_t l) {
    const SharedLayer& layer = job.layer[l];
    if (job.grads[l].absent() || is_empty(layer)) return;
    first = std::clamp<int64_t>(job.first - layer.first_block, 0, layer.blocks());
    last = std::clamp<int64_t>(job.last - layer.first_block, 0, layer.blocks());
    const int64_t least = std::max(kLeastRows, kRowsPerColumn * layer.width);
    part_rows = std::max(least, ceil_div(layer.rows, kMostParts));
    parts = ceil_div(layer.rows, part_rows);
    floats = partial_floats(Strip(layer.width, layer.pieces, kOctet).padded);
  }
  bool empty() const { return first >= last; }
  int64_t room() const { return empty() || parts == 1 ? 0 : (last - first) * parts * floats; }
};

}  // namespace

int64_t scratch_room(const SharedStep& job) {
  if (!job.rescales()) return 0;
  int64_t tasks = 0;
  for (int64_t l = 0; l < job.layers; ++l) tasks += steps(job, l) ? step_tasks(job.layer[l]) : 0;
  return job.layers + tasks * static_cast<int64_t>(sizeof(TaskNorms) / sizeof(double));
}

int64_t scratch_room(const SharedUpdate& job) {
  int64_t floats = 0;
  for (int64_t l = 0; l < job.layers; ++l) floats += UpdatedLayer(job, l).room();
  return ceil_div(floats, 2);
}

std::vector<Launch> plan(const SharedStep& job, double* scratch) {
  std::vector<Launch> launches;
  SharedStepHeader header{};
  header.inverse = static_cast<const float*>(job.inverse);
  header.controls = job.controls;
  header.scalars = job.scalars;
  SharedScaleHeader scaling{};
  if (job.rescales()) {
    header.directions = static_cast<float*>(job.directions);
    header.scales = scratch;
    header.norms = reinterpret_cast<TaskNorms*>(scratch + job.layers);
    header.weights = job.weights;
    header.refresh_targets = job.refresh_targets;
    scaling = {header.norms, job.target_norms.values, header.scales, !job.target_norms.one_for_all,
               job.refresh_targets};
  }
  Packer<SharedStepParameters> packer(header);
  Packer<SharedScaleParameters> scales(scaling);
  int64_t directions = 0;
  int64_t norms = 0;
  for (int64_t l = 0; l < job.layers; ++l) {
    const SharedLayer& layer = job.layer[l];
    if (steps(job, l)) {
      RowTensor moving = job.params[l];  // what has no gradient does not move
      if (job.grads[l].weight.data == nullptr) moving.weight.data = nullptr;
      if (job.grads[l].bias.data == nullptr) moving.bias.data = nullptr;
      SharedStepEntry entry{};
      LayerTensors tensors(layer);
      entry.params = tensors.add(&moving);
      entry.grads = tensors.add(&job.grads[l]);
      entry.momenta = tensors.add(&job.momenta[l]);
      entry.squares = tensors.add(job.refresh_targets ? &job.squares[l] : nullptr);
      entry.shape = tensors.shape;
      entry.directions = directions;
      entry.norms = norms;
      entry.layer = static_cast<uint32_t>(l);
      const int64_t tasks = step_tasks(layer);
      add_tasks(packer, entry, 0, tasks, tensors);
      if (job.rescales()) scales.add({norms, tasks, entry.layer}, 1, {});
      norms += tasks;
    }
    directions += direction_elements(layer);
  }
  std::vector<Launch> second;
  packer.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    if (job.rescales()) second.push_back({Kernel::SharedApply, 0, units, kStepThreads, 0, bytes});
    const Kernel kernel = job.rescales() ? Kernel::SharedFirst : Kernel::SharedStep;
    launches.push_back({kernel, 0, units, kStepThreads, 0, std::move(bytes)});
  });
  scales.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back({Kernel::SharedScale, 0, units, kTensorThreads, 0, std::move(bytes)});
  });
  launches.insert(launches.end(), second.begin(), second.end());
  return launches;
}

std::vector<Launch> plan(const SharedUpdate& job, double* scratch) {
  std::vector<Launch> launches;
  SharedUpdateHeader header{};
  header.stats = static_cast<float*>(job.stats);
  header.weights = job.weights;
  header.left_out = job.left_out;
  header.partials = reinterpret_cast<float*>(scratch);
  header.first = job.first;
  header.last = job.last;
  header.beta = job.beta;
  Packer<SharedUpdateParameters> packer(header);
  Packer<SharedAverageParameters> averages(header);
  int64_t partials = 0;
  for (int64_t l = 0; l < job.layers; ++l) {
    const SharedLayer& layer = job.layer[l];
    const UpdatedLayer updated(job, l);
    if (updated.empty()) continue;
    SharedUpdateEntry entry{};
    LayerTensors tensors(layer);
    entry.grads = tensors.add(&job.grads[l]);
    entry.squares = tensors.add(job.squares != nullptr ? &job.squares[l] : nullptr);
    entry.shape = tensors.shape;
    entry.partials = partials - updated.first * updated.parts * updated.floats;
    entry.part_rows = updated.part_rows;
    entry.parts = updated.parts;
    entry.layer = static_cast<uint32_t>(l);
    // Whole groups; the kernel leaves out the other blocks.
    const Strip strip(layer.width, layer.pieces, kOctet);
    const int64_t per_group = ceil_div(layer.pieces, strip.pieces) * updated.parts;
    add_tasks(packer, entry, updated.first / layer.pieces * per_group,
              ceil_div(updated.last, layer.pieces) * per_group, tensors);
    partials += updated.room();
    if (updated.parts == 1) continue;
    for (int64_t b = updated.first; b < updated.last; b += kEntryTasks) {
      SharedAverageEntry average{};
      average.shape = entry.shape;
      average.block = b;
      average.partials = entry.partials;
      average.parts = entry.parts;
      averages.add(average, std::min(kEntryTasks, updated.last - b), {});
    }
  }
  packer.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back({Kernel::SharedUpdate, 0, units, kUpdateThreads, 0, std::move(bytes)});
  });
  averages.finish([&](std::vector<unsigned char> bytes, uint32_t units) {
    launches.push_back({Kernel::SharedAverage, 0, units, kTensorThreads, 0, std::move(bytes)});
  });
  return launches;
}

}  // namespace mbf::cuda
