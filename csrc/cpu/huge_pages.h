// Huge pages for large memory.
#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

namespace mbf {

// Asks the system for huge pages: memory that is streamed through, or written for the first time,
// costs a TLB miss or a page fault per page. This is a hint, for the whole pages inside the range.
// Returns whether the system took it.
inline bool advise_huge_pages(uintptr_t data, size_t bytes) {
#if defined(MADV_HUGEPAGE)
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (data + page - 1) / page * page;
  const uintptr_t last = (data + bytes) / page * page;
  return first < last && madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE) == 0;
#else
  (void)data;
  (void)bytes;
  return false;
#endif
}

}  // namespace mbf
