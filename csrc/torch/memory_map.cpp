#include "memory_map.h"

#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

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

// A pipe of one thread in one process: a forked child must not share its parent's.
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

void MemoryMap::add(const char* list, const TensorList& tensors,
                    const std::vector<BlockView>& views, bool written) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const int64_t numel = views[i].data == nullptr ? 0 : tensors[i].numel();
    if (numel == 0) continue;
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
    if (!range.written || range.name.index < 0) continue;  // the library's own state
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

int64_t first_read_only(const std::vector<void*>& bytes) {
  // Every byte goes through a pipe and back to its place. The system stops at the first byte it
  // cannot store and returns how many it has stored.
  static thread_local Pipe channel;
  if (bytes.empty() || !channel.open()) return -1;
  constexpr size_t kAtOnce = 512;  // below every system's IOV_MAX and pipe capacity
  iovec vectors[kAtOnce];
  for (size_t first = 0; first < bytes.size(); first += kAtOnce) {
    const size_t count = std::min(kAtOnce, bytes.size() - first);
    for (size_t i = 0; i < count; ++i) vectors[i] = {bytes[first + i], 1};
    const ssize_t sent = writev(channel.write_end, vectors, static_cast<int>(count));
    if (sent <= 0) return -1;
    const ssize_t back = readv(channel.read_end, vectors, static_cast<int>(sent));
    if (back == sent) continue;
    char drained[kAtOnce];
    const size_t returned = back > 0 ? static_cast<size_t>(back) : 0;
    (void)!read(channel.read_end, drained, static_cast<size_t>(sent) - returned);
    return static_cast<int64_t>(first + returned);
  }
  return -1;
}

}  // namespace mbf
