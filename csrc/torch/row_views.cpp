#include "row_views.h"

#include <algorithm>

#include "block_views.h"

namespace mbf {
namespace {

constexpr int kFields = 6;
constexpr int64_t kMost = int64_t{1} << 31;  // of any field
constexpr int64_t kMostElements = int64_t{1} << 56;

// Checks one layer of the table and appends it to the layout.
void append(RowLayout& layout, const int64_t* field, int64_t most) {
  const int64_t place = static_cast<int64_t>(layout.layers.size());
  const auto wrong = [&](const char* what) { fail("layout[", place, "]: expected ", what); };
  SharedLayer layer{};
  layer.groups = field[0];
  layer.rows = field[1];
  layer.columns = field[2];
  layer.width = field[3];
  for (int i = 0; i < 3; ++i) {
    if (field[i] < 0 || field[i] > kMost) wrong("groups, rows and columns of 0 to 2^31");
  }
  if (layer.width < 1 || layer.width > most) {
    fail("layout[", place, "]: expected pieces of 1 to ", most, " columns");
  }
  if (field[4] < 0 || field[4] > 2) wrong("a kind of 0, 1 or 2");
  if (field[5] < 0 || field[5] > 1 || field[5] > layer.columns) wrong("a bias of 0 or 1");
  layer.bias = field[5] == 1;
  layer.pieces = (layer.columns + layer.width - 1) / layer.width;
  layer.first_block = layout.blocks;
  layer.offset = layout.elements;
  const __int128 numbers = static_cast<__int128>(layer.groups) * layer.rows * layer.columns;
  const __int128 matrices =
      static_cast<__int128>(layer.groups) * layer.pieces * layer.width * layer.width;
  if (numbers > kMostElements || matrices + layout.elements > kMostElements) {
    wrong("fewer than 2^56 numbers");
  }
  layout.blocks += layer.blocks();
  layout.elements += static_cast<int64_t>(matrices);
  layout.tensors += 1 + layer.bias;
  layout.layers.push_back(layer);
  layout.kinds.push_back(static_cast<RowKind>(field[4]));
}

// Sets how the columns of a row are walked: dimensions first .. dims - 1 by two strides.
bool set_columns(const int64_t* sizes, const int64_t* strides, int64_t first, int64_t dims,
                 RowView& view) {
  for (int64_t middle = first; middle <= dims; ++middle) {
    const int64_t outer = joint_stride(sizes, strides, first, middle);
    const int64_t inner = joint_stride(sizes, strides, middle, dims);
    if (outer < 0 || inner < 0) continue;
    view.inner = 1;
    for (int64_t i = middle; i < dims; ++i) view.inner *= sizes[i];
    view.outer_stride = outer;
    view.inner_stride = inner;
    // A single column has no stride.
    if (view.columns == 1) view.inner_stride = 1;
    return true;
  }
  return false;
}

// Sets the strides of a weight with elements; false if its memory cannot be walked.
bool set_strides(const Tensor& tensor, const SharedLayer& layer, RowKind kind, Name name,
                 RowView& view) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t dims = tensor.dim();
  const int64_t of_weight = layer.columns - layer.bias;
  const auto wrong = [&](const char* what) {
    fail(name, ": expected ", what, ", got ", shape_text(sizes.data(), dims));
  };
  view.row_inner = layer.rows;
  if (kind == RowKind::Rows) {
    if (dims < 1 || sizes[0] != layer.groups * layer.rows) wrong("a row per output");
    view.group_stride = layer.rows * strides[0];
    view.row_stride = strides[0];
    return set_columns(sizes.data(), strides.data(), 1, dims, view);
  }
  if (dims < 2) wrong("the weight of a convolution");
  if (kind == RowKind::Kernels) {
    if (sizes[0] * sizes[1] != layer.groups * layer.rows) wrong("a row per kernel");
    if (layer.groups > 1) {
      view.row_stride = joint_stride(sizes.data(), strides.data(), 0, 2);
      view.group_stride = layer.rows * view.row_stride;
      return view.row_stride >= 0 && set_columns(sizes.data(), strides.data(), 2, dims, view);
    }
    view.row_inner = sizes[1];
    view.row_outer_stride = strides[0];
    view.row_stride = strides[1];
    return set_columns(sizes.data(), strides.data(), 2, dims, view);
  }
  if (sizes[1] != layer.rows || sizes[0] % layer.groups != 0) wrong("inputs before outputs");
  const int64_t inputs = sizes[0] / layer.groups;
  view.group_stride = inputs * strides[0];
  view.row_stride = strides[1];
  view.inner = of_weight / inputs;
  view.outer_stride = strides[0];
  view.inner_stride = joint_stride(sizes.data(), strides.data(), 2, dims);
  if (inputs == 1 && view.inner == 1) view.inner_stride = 1;
  return view.inner_stride >= 0;
}

RowView view_of(const Tensor& tensor, const SharedLayer& layer, RowKind kind, bool is_bias,
                Name name, Format format) {
  const int64_t columns = is_bias ? 1 : layer.columns - layer.bias;
  const int64_t expected = layer.groups * layer.rows * columns;
  const int64_t numel = tensor.numel();
  if (numel != expected) fail(name, ": expected ", expected, " numbers, got ", numel);
  RowView view{};
  view.data = tensor.data_ptr();
  view.format = format;
  view.columns = columns;
  view.row_inner = view.inner = 1;
  if (numel == 0) return view;
  bool walkable;
  if (is_bias) {
    view.row_inner = layer.rows;
    view.row_stride = joint_stride(tensor.sizes().data(), tensor.strides().data(), 0, tensor.dim());
    view.group_stride = layer.rows * view.row_stride;
    view.inner_stride = 1;
    walkable = view.row_stride >= 0;
  } else {
    walkable = set_strides(tensor, layer, kind, name, view);
  }
  if (!walkable) {
    fail(name, ": its memory cannot be walked in rows (strides ",
         shape_text(tensor.strides().data(), tensor.dim()), "); use a contiguous tensor");
  }
  return view;
}

}  // namespace

RowLayout::RowLayout(const Tensor& table, int64_t most) {
  const int64_t count = table.dim() == 2 ? table.size(0) : 0;
  check_state("layout", table, {count, kFields}, ScalarType::Long, Place{});
  const auto* fields = static_cast<const int64_t*>(table.data_ptr());
  layers.reserve(count);
  kinds.reserve(count);
  for (int64_t l = 0; l < count; ++l) append(*this, fields + l * kFields, most);
}

std::vector<RowTensor> row_views(const char* name, const TensorList& tensors,
                                 const RowLayout& layout, const std::vector<Format>& allowed,
                                 bool may_be_absent) {
  if (static_cast<int64_t>(tensors.size()) != layout.tensors) {
    fail(name, ": expected ", layout.tensors, " tensors, got ", tensors.size());
  }
  std::vector<RowTensor> views(layout.layers.size());
  size_t next = 0;
  for (size_t l = 0; l < views.size(); ++l) {
    const SharedLayer& layer = layout.layers[l];
    for (bool is_bias : {false, true}) {
      if (is_bias && !layer.bias) continue;
      const Name where{name, static_cast<int64_t>(next)};
      const Tensor& tensor = tensors[next++];
      RowView& view = is_bias ? views[l].bias : views[l].weight;
      Format format{};
      if (!is_allowed(where, tensor, allowed, may_be_absent, format)) continue;
      view = view_of(tensor, layer, layout.kinds[l], is_bias, where, format);
    }
  }
  return views;
}

}  // namespace mbf
