#include "tensor_checks.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>

namespace mbf {
namespace {

std::string shape_text(const int64_t* sizes, int64_t dims) {
  std::string text = "(";
  for (int64_t i = 0; i < dims; ++i) text += (i ? ", " : "") + std::to_string(sizes[i]);
  return text + ")";
}

const char* format_name(Format format) {
  switch (format) {
    case Format::Float64: return "float64";
    case Format::BFloat16: return "bfloat16";
    case Format::Float16: return "float16";
    default: return "float32";
  }
}

std::string format_list(const std::vector<Format>& formats) {
  std::string text;
  for (Format format : formats)
    text += (text.empty() ? "" : " or ") + std::string(format_name(format));
  return text;
}

// True and the format of a tensor, if it has one the kernels know. Tensor::scalar_type asks the
// library once per dtype there is; a call has hundreds of tensors, so the codes are kept.
bool format_of(const Tensor& tensor, Format& format) {
  static const int32_t kFloat32 = aoti_torch_dtype_float32();
  static const int32_t kFloat64 = aoti_torch_dtype_float64();
  static const int32_t kBFloat16 = aoti_torch_dtype_bfloat16();
  static const int32_t kFloat16 = aoti_torch_dtype_float16();
  int32_t code = 0;
  STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &code));
  if (code == kFloat32) {
    format = Format::Float32;
  } else if (code == kBFloat16) {
    format = Format::BFloat16;
  } else if (code == kFloat16) {
    format = Format::Float16;
  } else if (code == kFloat64) {
    format = Format::Float64;
  } else {
    return false;
  }
  return true;
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

// A pipe of this thread in this process: a forked child must not share its parent's.
struct Pipe {
  int read_end = -1;
  int write_end = -1;
  pid_t owner = -1;

  bool open() {
    if (owner == getpid()) return read_end >= 0;
    int ends[2] = {-1, -1};
    owner = getpid();
    const bool opened = pipe(ends) == 0;
    read_end = opened ? ends[0] : -1;
    write_end = opened ? ends[1] : -1;
    return opened;
  }
  ~Pipe() {
    if (owner != getpid() || read_end < 0) return;
    close(read_end);
    close(write_end);
  }
};

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

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return place.cuda ? out << "cuda:" << place.index : out << "cpu";
}

void check_place(Name name, const Tensor& tensor, const Place& place) {
  const bool there =
      place.cuda ? tensor.is_cuda() && tensor.get_device_index() == place.index : tensor.is_cpu();
  if (!there) fail(name, ": expected a tensor on ", place);
}

void check_state(const char* name, const Tensor& tensor, std::initializer_list<int64_t> shape,
                 ScalarType dtype, const Place& place) {
  check_place({name}, tensor, place);
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
                                   const std::vector<int64_t>& blocks,
                                   const std::vector<Format>& allowed, bool may_be_absent) {
  if (tensors.size() != blocks.size()) {
    fail(name, ": expected ", blocks.size(), " tensors, got ", tensors.size());
  }
  std::vector<BlockView> views(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor& tensor = tensors[i];
    const Name where{name, static_cast<int64_t>(i)};
    BlockView& view = views[i];
    if (!format_of(tensor, view.format) ||
        std::find(allowed.begin(), allowed.end(), view.format) == allowed.end()) {
      if (may_be_absent && tensor.numel() == 0 && tensor.scalar_type() == ScalarType::Bool) {
        view.data = nullptr;
        continue;
      }
      fail(where, ": expected ", format_list(allowed), ", got ", dtype_name(tensor.scalar_type()));
    }
    const int64_t numel = tensor.numel();
    if (numel % block_size != 0) {
      fail(where, ": expected a multiple of block_size ", block_size, " numbers, got ", numel);
    }
    if (numel != blocks[i] * block_size) {
      fail(where, ": expected ", blocks[i] * block_size, " numbers, got ", numel);
    }
    view.data = tensor.data_ptr();
    view.contiguous = tensor.is_contiguous();
    view.inner = std::max<int64_t>(1, blocks[i]);
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
                    const std::vector<BlockView>& views, const std::vector<int64_t>& blocks,
                    int64_t block_size, bool written) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t numel = blocks[i] * block_size;
    if (numel == 0 || views[i].data == nullptr) continue;
    const Name name{list, static_cast<int64_t>(i)};
    const bool contiguous = views[i].contiguous;
    if (written && !contiguous && overlaps_itself(tensors[i])) {
      fail(name, ": several of its numbers share memory (an expanded tensor?)");
    }
    const int64_t count = contiguous ? numel : last_offset(tensors[i]) + 1;
    const auto begin = reinterpret_cast<uintptr_t>(views[i].data);
    const size_t bytes = count * format_bytes(views[i].format);
    ranges_.push_back({begin, begin + bytes, name, written});
  }
}

void MemoryMap::add(const char* name, const Tensor& tensor, bool written) {
  const int64_t numel = tensor.numel();
  if (numel == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  ranges_.push_back({begin, begin + numel * tensor.element_size(), {name}, written});
}

void MemoryMap::check_writable() const {
  constexpr uintptr_t kPage = 4096;
  std::vector<void*> bytes;
  std::vector<const Range*> owners;
  bytes.reserve(2 * ranges_.size());
  owners.reserve(2 * ranges_.size());
  for (const Range& range : ranges_) {
    if (!range.written || range.name.index < 0) continue;  // state is the library's own memory
    bytes.push_back(reinterpret_cast<void*>(range.begin));
    owners.push_back(&range);
    if (range.begin / kPage == (range.end - 1) / kPage) continue;
    bytes.push_back(reinterpret_cast<void*>(range.end - 1));
    owners.push_back(&range);
  }
  const int64_t found = first_read_only(bytes);
  if (found >= 0) fail(owners[found]->name, ": its memory is read-only");
}

void MemoryMap::check(const Place& place) {
  if (!place.cuda) check_writable();
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

int64_t first_read_only(const std::vector<void*>& bytes) {
  // Every byte goes through a pipe and back to where it was. The kernel stops where a store would
  // fault, and says how far it came.
  static thread_local Pipe channel;
  if (bytes.empty() || !channel.open()) return -1;
  constexpr size_t kAtOnce = 512;  // below every system's IOV_MAX and pipe capacity
  iovec pieces[kAtOnce];
  for (size_t first = 0; first < bytes.size(); first += kAtOnce) {
    const size_t count = std::min(kAtOnce, bytes.size() - first);
    for (size_t i = 0; i < count; ++i) pieces[i] = {bytes[first + i], 1};
    const ssize_t sent = writev(channel.write_end, pieces, static_cast<int>(count));
    if (sent <= 0) return -1;
    const ssize_t back = readv(channel.read_end, pieces, static_cast<int>(sent));
    if (back == sent) continue;
    char drained[kAtOnce];
    const size_t returned = back > 0 ? static_cast<size_t>(back) : 0;
    (void)!read(channel.read_end, drained, static_cast<size_t>(sent) - returned);
    return static_cast<int64_t>(first + returned);
  }
  return -1;
}

}  // namespace mbf
