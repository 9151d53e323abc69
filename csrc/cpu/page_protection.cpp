#include "page_protection.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>

namespace mbf {
namespace {

// struct procmap_query of linux/fs.h, which older headers lack.
struct MappingQuery {
  uint64_t size, flags, address;
  uint64_t begin, end, protection, page_size, offset, inode;
  uint32_t device_major, device_minor, name_size, build_id_size;
  uint64_t name_address, build_id_address;
};
constexpr uint64_t kWritable = 2;
constexpr auto kQuery = _IOWR('f', 17, MappingQuery);

// /proc/self/maps of this process, opened when first needed; a forked child opens its own. The
// descriptor is not inherited by other programs. If somebody closes it and it becomes another
// file's, that file gets a request it does not know, and we open ours again.
class MapsFile {
 public:
  int get() {
    if (owner_ != getpid()) open_again();
    return descriptor_;
  }
  int open_again() {
    owner_ = getpid();
    return descriptor_ = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  }

 private:
  int descriptor_ = -1;
  pid_t owner_ = -1;
};

bool ask(int descriptor, uintptr_t address, MappingQuery& query) {
  query = {};
  query.size = sizeof query;
  query.address = address;
  return descriptor >= 0 && ioctl(descriptor, kQuery, &query) == 0;
}

// Mappings in ascending order; empty where the system has no such file.
std::vector<Mapping> read_list() {
  std::vector<Mapping> found;
  FILE* file = fopen("/proc/self/maps", "re");
  if (file == nullptr) return found;
  unsigned long begin = 0, end = 0;
  char protection[8] = "";
  while (fscanf(file, "%lx-%lx %7s%*[^\n]", &begin, &end, protection) == 3) {
    found.push_back({begin, end, protection[1] == 'w'});
  }
  fclose(file);
  return found;
}

bool find(const std::vector<Mapping>& list, uintptr_t address, Mapping& mapping) {
  const auto after = std::upper_bound(list.begin(), list.end(), address,
                                      [](uintptr_t a, const Mapping& m) { return a < m.begin; });
  if (after == list.begin() || !(after - 1)->contains(address)) return false;
  mapping = *(after - 1);
  return true;
}

std::mutex& lock() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

bool query_mapping(uintptr_t address, Mapping& mapping) {
  static std::atomic<bool> unknown{false};  // to this system
  static MapsFile file;
  if (unknown) return false;
  const std::lock_guard<std::mutex> guard(lock());
  MappingQuery query;
  if (!ask(file.get(), address, query) && errno != ENOENT &&
      !ask(file.open_again(), address, query) && errno != ENOENT) {
    unknown = true;
    return false;
  }
  if (query.end == 0) return false;  // nothing is mapped there
  mapping = {query.begin, query.end, (query.protection & kWritable) != 0};
  return true;
}

bool find_in_list(uintptr_t address, Mapping& mapping) {
  static std::vector<Mapping> known;
  const std::lock_guard<std::mutex> guard(lock());
  if (find(known, address, mapping) && mapping.writable) return true;
  known = read_list();
  return find(known, address, mapping);
}

int64_t first_read_only(const std::vector<uintptr_t>& addresses) {
  Mapping mapping;  // of the address before: neighbours are mostly in the same
  for (size_t i = 0; i < addresses.size(); ++i) {
    if (mapping.contains(addresses[i])) continue;
    mapping = {};
    if (!query_mapping(addresses[i], mapping) && !find_in_list(addresses[i], mapping)) {
      mapping = {};
    }
    if (!mapping.writable) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace mbf
