#include "memory_map.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "../cpu/page_protection.h"

namespace mbf {
namespace {

// Whether several elements may share memory: a stride is shorter than what it steps over.
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

}  // namespace

void MemoryMap::add(const char* list, const TensorList& tensors,
                    const std::vector<BlockView>& views, bool written) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (views[i].data == nullptr) continue;
    const size_t bytes = format_bytes(views[i].format);
    add({list, static_cast<int64_t>(i)}, tensors[i], views[i].contiguous, bytes, written);
  }
}

void MemoryMap::add(Name name, const Tensor& tensor, bool written) {
  add(name, tensor, tensor.is_contiguous(), tensor.element_size(), written);
}

void MemoryMap::add(Name name, const Tensor& tensor, bool contiguous, size_t element_bytes,
                    bool written) {
  const int64_t numel = tensor.numel();
  if (numel == 0) return;
  if (written && !contiguous && overlaps_itself(tensor)) {
    fail(name, ": several of its numbers share memory (an expanded tensor?)");
  }
  const int64_t count = contiguous ? numel : last_offset(tensor) + 1;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  ranges_.push_back({begin, begin + count * element_bytes, name, written});
}

void MemoryMap::add(const char* name, const Tensor& tensor, bool written) {
  const int64_t numel = tensor.numel();
  if (numel == 0) return;
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  ranges_.push_back({begin, begin + numel * tensor.element_size(), {name}, written});
}

// Called when ranges are in ascending order, so that neighbours are looked up together.
void MemoryMap::check_writable() const {
  std::vector<uintptr_t> addresses;
  std::vector<const Range*> owners;
  addresses.reserve(2 * ranges_.size());
  owners.reserve(2 * ranges_.size());
  for (const Range& range : ranges_) {
    // The library's own state is writable. Target norms that are refreshed belong to the user.
    const bool own = range.name.index < 0 && std::strcmp(range.name.list, "target_norms") != 0;
    if (!range.written || own) continue;
    for (uintptr_t address : {range.begin, range.end - 1}) {
      addresses.push_back(address);
      owners.push_back(&range);
    }
  }
  const int64_t found = first_read_only(addresses);
  if (found >= 0) fail(owners[found]->name, ": its memory is read-only");
}

void MemoryMap::check(const Place& place) {
  std::sort(ranges_.begin(), ranges_.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  if (!place.cuda) check_writable();
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

}  // namespace mbf
