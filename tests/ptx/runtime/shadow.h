// The last accesses to every piece of memory, for as much of it as is accessed.
#pragma once

#include <array>
#include <unordered_map>
#include <vector>

#include "order.h"

namespace ptx {

// An access. A time of 0 stands for none.
struct Trace {
  u32 thread;
  Time time;
  u32 line : 23, how : 9;
};

// Accesses to some bytes that later ones are compared with: the last weak store, which all earlier
// accesses happened before, or else were reported; and others since then. There may be any number
// of those. A few are kept, of different threads, warps and blocks if there are such.
struct Cell {
  Trace store;
  Trace other;
  u32 more;  // index of further ones, or 0
};

using More = std::array<Trace, 3>;

class Shadow {
 public:
  // Calls f(cell) for the cells of `size` bytes at an address that is a multiple of the size.
  template <class F>
  void for_cells(u64 address, u64 size, F f) {
    while (size > 0) {
      Page& page = page_of(address);
      if (page.granule > 1 && size < page.granule) split(page);
      const u64 offset = address % kPageBytes;
      const u64 here = std::min(size, kPageBytes - offset);
      for (u64 i = 0; i < here; i += page.granule) f(page.cells[(offset + i) / page.granule]);
      address += here;
      size -= here;
    }
  }

  template <class F>  // f(trace) for all other accesses of a cell
  void for_others(Cell& cell, F f) {
    if (cell.other.time == 0) return;
    f(cell.other);
    if (cell.more == 0) return;
    for (Trace& trace : more_[cell.more]) {
      if (trace.time != 0) f(trace);
    }
  }

  void set_store(Cell& cell, const Trace& trace);
  void add_other(Cell& cell, const Trace& trace, const Thread& t, const HappensBefore& order);
  void forget(u64 address, u64 size);

 private:
  static constexpr u64 kPageBytes = 512;
  static constexpr u64 kGranule = 4;  // bytes of a cell, unless narrower accesses split the page

  struct Page {
    u64 granule = kGranule;
    std::vector<Cell> cells{kPageBytes / kGranule};
  };

  using Others = std::array<Trace*, 4>;

  static Trace* oldest(const Others& all, u32 how);
  static Trace* dispensable(const Others& all, const Trace& trace, const HappensBefore& order);
  Page& page_of(u64 address);
  void split(Page& page);
  void clear_others(Cell& cell);
  u32 new_more();

  std::unordered_map<u64, Page> pages_;
  std::array<std::pair<u64, Page*>, 256> recent_{};  // by the last bits of their numbers
  std::vector<More> more_{1};
  std::vector<u32> free_more_;
};

}  // namespace ptx
