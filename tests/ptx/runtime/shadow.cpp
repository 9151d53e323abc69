#include "shadow.h"

namespace ptx {

Shadow::Page& Shadow::page_of(u64 address) {
  const u64 number = address / kPageBytes;
  auto& [known, page] = recent_[number % recent_.size()];
  if (page == nullptr || known != number) {
    known = number;
    page = &pages_[number];
  }
  return *page;
}

u32 Shadow::new_more() {
  if (free_more_.empty()) {
    more_.push_back({});
    return static_cast<u32>(more_.size() - 1);
  }
  const u32 index = free_more_.back();
  free_more_.pop_back();
  more_[index] = {};
  return index;
}

void Shadow::split(Page& page) {
  std::vector<Cell> cells;
  cells.reserve(kPageBytes);
  for (const Cell& cell : page.cells) {
    for (u64 byte = 0; byte < page.granule; ++byte) {
      cells.push_back(cell);
      if (cell.more == 0 || byte == 0) continue;
      cells.back().more = new_more();
      more_[cells.back().more] = more_[cell.more];
    }
  }
  page.cells = std::move(cells);
  page.granule = 1;
}

void Shadow::clear_others(Cell& cell) {
  cell.other.time = 0;
  if (cell.more != 0) free_more_.push_back(cell.more);
  cell.more = 0;
}

void Shadow::set_store(Cell& cell, const Trace& trace) {
  cell.store = trace;
  clear_others(cell);
}

void Shadow::add_other(Cell& cell, const Trace& trace, const Thread& t,
                       const HappensBefore& order) {
  // An access that happened before a later one of the same form cannot race with anything that
  // does not race with the later one.
  const auto replaces = [&](const Trace& old) {
    return old.time == 0 || (old.how == trace.how && order.knows(t, old.thread, old.time));
  };
  if (replaces(cell.other)) {
    cell.other = trace;
    return;
  }
  if (cell.more == 0) cell.more = new_more();
  More& more = more_[cell.more];
  for (Trace& old : more) {
    if (!replaces(old)) continue;
    old = trace;
    return;
  }
  // No room: two lanes of a warp, two warps of a block and two blocks are enough.
  std::array<Trace*, 4> all{&cell.other, &more[0], &more[1], &more[2]};
  const auto count = [&](auto place) {
    int like[5] = {};  // how many have the place of each, the new one at the end
    for (int i = 0; i < 5; ++i) {
      const u32 own = place(i < 4 ? all[i]->thread : trace.thread);
      for (const Trace* one : all) like[i] += place(one->thread) == own;
    }
    return std::to_array(like);
  };
  const auto in_warp = count([&](u32 thread) { return order.warp_of(thread); });
  const auto in_block = count([&](u32 thread) { return order.block_of(thread); });
  for (const auto& like : {in_warp, in_block}) {
    if (like[4] >= 2) return;
    for (int i = 0; i < 4; ++i) {
      if (like[i] < 3) continue;
      *all[i] = trace;
      return;
    }
  }
}

void Shadow::forget(u64 address, u64 size) {
  for (u64 number = address / kPageBytes; number * kPageBytes < address + size; ++number) {
    const auto found = pages_.find(number);
    if (found == pages_.end()) continue;
    for (Cell& cell : found->second.cells) {
      clear_others(cell);
      cell.store.time = 0;
    }
  }
}

}  // namespace ptx
