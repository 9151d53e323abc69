#include "shadow.h"

#include <tuple>

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
  const Others all{&cell.other, &more[0], &more[1], &more[2]};
  const auto is_strong_store = [](const Trace& x) {
    return (x.how & kStrong) && (x.how & kKind) != kLoad;
  };
  bool keeps_last = is_strong_store(trace);
  for (const Trace* old : all) keeps_last |= (trace.how & kStrong) && is_strong_store(*old);
  int alike = 0, in_warp = 0;
  Trace* place = nullptr;
  for (Trace* old : all) {
    if (replaces(*old)) {
      place = old;
      break;
    }
    if (old->how != trace.how) continue;
    ++alike;
    in_warp += order.warp_of(old->thread) == order.warp_of(trace.thread);
    if (!keeps_last && in_warp == 2) return;  // two lanes of a warp are enough
  }
  if (keeps_last && (place == nullptr || alike >= 2)) place = oldest(all, trace.how);
  if (!keeps_last && place == nullptr) place = dispensable(all, trace, order);
  if (place != nullptr) *place = trace;
}

// Of strong stores and their readers the last two matter: who has read them has read what came
// before. The one to give up is the oldest of the same form, or of all.
Trace* Shadow::oldest(const Others& all, u32 how) {
  const auto rank = [&](const Trace* one) {
    return std::tuple{one->time == 0, one->how != how, one->time};
  };
  return *std::min_element(all.begin(), all.end(),
                           [&](const Trace* a, const Trace* b) { return rank(a) < rank(b); });
}

// Of weak loads, two lanes of a warp, two warps of a block and two blocks are enough: that of them
// which is not needed for it, or null if the new one is not.
Trace* Shadow::dispensable(const Others& all, const Trace& trace, const HappensBefore& order) {
  const auto among = [&](auto place) {
    const u32 own = place(trace.thread);
    std::array<u32, 4> places;
    for (size_t i = 0; i < 4; ++i) places[i] = place(all[i]->thread);
    const auto count = [&](u32 x) { return std::count(places.begin(), places.end(), x); };
    if (count(own) >= 2) return std::pair{true, static_cast<Trace*>(nullptr)};
    // Where three of four are in one place, one of the first two is.
    for (size_t i = 0; i < 2; ++i) {
      if (count(places[i]) >= 3) return std::pair{true, all[i]};
    }
    return std::pair{false, static_cast<Trace*>(nullptr)};
  };
  const auto [decided, found] = among([&](u32 thread) { return order.warp_of(thread); });
  if (decided) return found;
  return among([&](u32 thread) { return order.block_of(thread); }).second;
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
