#include "tensor_checks.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>

namespace mbf {
namespace {

std::string shape_text(const int64_t* sizes, int64_t dims) {
  std::string text = "(";
  for (int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

std::string dtype_list(const std::vector<ScalarType>& types) {
  std::string text;
  for (ScalarType type : types)
    text += (text.empty() ? "" : " or ") + std::string(dtype_name(type));
  return text;
}

Format format_of(ScalarType type) {
  switch (type) {
    case ScalarType::Double: return Format::Float64;
    case ScalarType::BFloat16: return Format::BFloat16;
    case ScalarType::Half: return Format::Float16;
    default: return Format::Float32;
  }
}

size_t format_bytes(Format format) {
  switch (format) {
    case Format::Float64: return 8;
    case Format::Float32: return 4;
    default: return 2;
  }
}

// One stride that walks dims [first, last) in order, or -1. Dimensions of size one have no say.
int64_t joint_stride(const int64_t* sizes, const int64_t* strides, int64_t first, int64_t last) {
  int64_t expected = -1;
  int64_t step = 1;
  for (int64_t i = last - 1; i >= first; --i) {
    if (sizes[i] == 1) continue;
    if (expected < 0) {
      step = strides[i];
    } else if (strides[i] != expected) {
      return -1;
    }
    expected = strides[i] * sizes[i];
  }
  return step;
}

// Blocks of a tensor that is not contiguous: its trailing dimensions must make up a block that one
// stride walks, and the leading ones must collapse to two (channels_last convolutions do).
bool strided_view(const Tensor& tensor, int64_t d, BlockView& view) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  const int64_t dims = tensor.dim();
  int64_t split = dims;
  int64_t numbers = 1;
  while (split > 0 && numbers < d) numbers *= sizes[--split];
  if (numbers != d) return false;
  view.element_stride = joint_stride(sizes.data(), strides.data(), split, dims);
  if (view.element_stride < 0) return false;
  for (int64_t middle = 0; middle <= split; ++middle) {
    const int64_t outer = joint_stride(sizes.data(), strides.data(), 0, middle);
    const int64_t inner = joint_stride(sizes.data(), strides.data(), middle, split);
    if (outer < 0 || inner < 0) continue;
    view.inner = 1;
    for (int64_t i = middle; i < split; ++i) view.inner *= sizes[i];
    view.outer_stride = outer;
    view.inner_stride = inner;
    return true;
  }
  return false;
}

// Sizes and strides reach every number once: no stride shorter than what lies inside it.
bool overlaps_itself(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  std::vector<std::pair<int64_t, int64_t>> dims;
  for (int64_t i = 0; i < tensor.dim(); ++i) {
    if (sizes[i] > 1) dims.emplace_back(strides[i], sizes[i]);
  }
  std::sort(dims.begin(), dims.end());
  int64_t reach = 1;
  for (const auto& [stride, size] : dims) {
    if (stride < reach) return true;
    reach = stride * size;
  }
  return false;
}

int64_t last_offset(const Tensor& tensor) {
  const auto sizes = tensor.sizes();
  const auto strides = tensor.strides();
  int64_t offset = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) offset += (sizes[i] - 1) * strides[i];
  return offset;
}

// Writes the byte at p back to itself through the kernel, which refuses where a store would fault.
bool byte_is_writable(const void* p) {
  static thread_local std::array<int, 2> ends = [] {
    std::array<int, 2> pair{-1, -1};
    if (pipe(pair.data()) != 0) pair = {-1, -1};
    return pair;
  }();
  if (ends[0] < 0) return true;  // no way to ask
  if (write(ends[1], p, 1) != 1) return true;
  if (read(ends[0], const_cast<void*>(p), 1) == 1) return true;
  char drained;
  (void)!read(ends[0], &drained, 1);
  return false;
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Name& name) {
  out << name.list;
  if (name.index >= 0) out << '[' << name.index << ']';
  return out;
}

const char* dtype_name(ScalarType type) {
  switch (type) {
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Half: return "float16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    default: return "another dtype";
  }
}

void check_block_size(int64_t block_size) {
  if (block_size < 1 || block_size > kMaxBlock) {
    fail("block_size: expected 1 to ", kMaxBlock, ", got ", block_size);
  }
}

void check_unit_interval(const char* name, double value) {
  if (!(value >= 0.0 && value <= 1.0)) fail(name, ": expected a number in [0, 1], got ", value);
}

void check_damping(double value) {
  if (!(value >= 0.0) || std::isinf(value)) {
    fail("damping: expected a finite number >= 0, got ", value);
  }
}

void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype) {
  if (!tensor.is_cpu()) fail(name, ": expected a tensor on cpu");
  if (tensor.scalar_type() != dtype) {
    fail(name, ": expected ", dtype_name(dtype), ", got ", dtype_name(tensor.scalar_type()));
  }
  const auto sizes = tensor.sizes();
  const bool same =
      sizes.size() == shape.size() && std::equal(shape.begin(), shape.end(), sizes.begin());
  if (!same) {
    fail(name, ": expected shape ", shape_text(shape.begin(), shape.size()), ", got ",
         shape_text(sizes.data(), sizes.size()));
  }
  if (!tensor.is_contiguous()) fail(name, ": expected contiguous memory");
}

std::vector<BlockView> block_views(const char* name, const TensorList& tensors, int64_t block_size,
                                   const std::vector<ScalarType>& allowed) {
  std::vector<BlockView> views(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const Name where{name, static_cast<int64_t>(i)};
    if (!tensor.is_cpu()) fail(where, ": expected a tensor on cpu");
    const ScalarType type = tensor.scalar_type();
    if (std::find(allowed.begin(), allowed.end(), type) == allowed.end()) {
      fail(where, ": expected ", dtype_list(allowed), ", got ", dtype_name(type));
    }
    const int64_t numel = tensor.numel();
    if (numel % block_size != 0) {
      fail(where, ": expected a multiple of block_size ", block_size, " numbers, got ", numel);
    }
    BlockView& view = views[i];
    view.data = tensor.data_ptr();
    view.format = format_of(type);
    view.contiguous = tensor.is_contiguous();
    view.inner = std::max<int64_t>(1, numel / block_size);
    view.outer_stride = 0;
    view.inner_stride = block_size;
    view.element_stride = 1;
    if (!view.contiguous && numel > 0 && !strided_view(tensor, block_size, view)) {
      fail(where, ": its memory cannot be walked in blocks of ", block_size, " (strides ",
           shape_text(tensor.strides().data(), tensor.dim()),
           "); use a contiguous or channels_last tensor");
    }
  }
  return views;
}

void MemoryMap::add(const char* list, const TensorList& tensors,
                    const std::vector<BlockView>& views, int64_t /*block_size*/, bool written) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t numel = tensors[i].numel();
    if (numel == 0) continue;
    const Name name{list, static_cast<int64_t>(i)};
    const bool contiguous = views[i].contiguous;
    if (written && !contiguous && overlaps_itself(tensors[i])) {
      fail(name, ": several of its numbers share memory (an expanded tensor?)");
    }
    const int64_t count = contiguous ? numel : last_offset(tensors[i]) + 1;
    const auto begin = reinterpret_cast<uintptr_t>(views[i].data);
    const size_t bytes = count * format_bytes(views[i].format);
    if (written && !memory_is_writable(views[i].data, bytes)) {
      fail(name, ": its memory is read-only");
    }
    ranges_.push_back({begin, begin + bytes, name, written});
  }
}

void MemoryMap::add(const char* name, const Tensor& tensor, bool written) {
  const int64_t numel = tensor.numel();
  if (numel == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  ranges_.push_back({begin, begin + numel * tensor.element_size(), {name}, written});
}

void MemoryMap::check() {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  const Range* furthest = nullptr;          // of all ranges so far, the one that ends last
  const Range* furthest_written = nullptr;  // of the written ones
  for (const Range& range : ranges_) {
    const Range* other = range.written ? furthest : furthest_written;
    if (other != nullptr && range.begin < other->end) {
      fail(range.name, " and ", other->name, ": expected separate memory, but they overlap");
    }
    if (furthest == nullptr || range.end > furthest->end) furthest = &range;
    if (range.written && (furthest_written == nullptr || range.end > furthest_written->end)) {
      furthest_written = &range;
    }
  }
}

std::vector<int64_t> tile_starts(const std::vector<int64_t>& blocks) {
  std::vector<int64_t> starts(blocks.size() + 1);
  for (size_t i = 0; i < blocks.size(); ++i) {
    starts[i + 1] = starts[i] + (blocks[i] + kTileBlocks - 1) / kTileBlocks;
  }
  return starts;
}

bool memory_is_writable(const void* data, size_t bytes) {
  // Two system calls are too many for every tensor of every step: what was writable stays so.
  struct Seen {
    const void* data;
    size_t bytes;
  };
  constexpr size_t kSlots = 4096;
  static thread_local std::vector<Seen> seen(kSlots, Seen{nullptr, 0});
  Seen& slot = seen[(reinterpret_cast<uintptr_t>(data) >> 6) % kSlots];
  if (slot.data == data && slot.bytes == bytes) return true;
  const char* last = static_cast<const char*>(data) + bytes - 1;
  if (!byte_is_writable(data) || !byte_is_writable(last)) return false;
  slot = {data, bytes};
  return true;
}

}  // namespace mbf
