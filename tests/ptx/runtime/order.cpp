#include "order.h"

#include "launch.h"

namespace ptx {

namespace {

u64 thread_key(u32 thread) { return thread; }
u64 warp_key(u32 warp) { return u64{1} << 62 | warp; }
u64 block_key(u32 block) { return u64{2} << 62 | block; }

Time time_in(const View& view, u64 key) {
  const auto at = std::lower_bound(view.begin(), view.end(), std::pair<u64, Time>{key, 0});
  return at != view.end() && at->first == key ? at->second : 0;
}

ViewPointer joined(const ViewPointer& a, const ViewPointer& b) {
  if (!a || a == b) return b;
  if (!b) return a;
  auto both = std::make_shared<View>();
  both->reserve(a->size() + b->size());
  std::merge(a->begin(), a->end(), b->begin(), b->end(), std::back_inserter(*both));
  // Of the entries of a key, the last one has the latest time.
  size_t kept = 0;
  for (size_t i = 0; i < both->size(); ++i) {
    const bool last = i + 1 == both->size() || (*both)[i + 1].first != (*both)[i].first;
    if (last) (*both)[kept++] = (*both)[i];
  }
  both->resize(kept);
  return both;
}

}  // namespace

bool HappensBefore::knows_from_elsewhere(const View& view, u32 thread, Time time) const {
  return time <= time_in(view, block_key(block_of(thread))) ||
         time <= time_in(view, warp_key(warp_of(thread))) ||
         time <= time_in(view, thread_key(thread));
}

ViewPointer HappensBefore::all_that_is_known(const Thread& t) const {
  auto view = std::make_shared<View>();
  view->push_back({thread_key(t.number), clock_});
  if (t.warp->ordered_at > 0) view->push_back({warp_key(warp_of(t.number)), t.warp->ordered_at});
  if (t.block->ordered_at > 0) view->push_back({block_key(t.block->number), t.block->ordered_at});
  return joined(view, t.knowledge->view);
}

void HappensBefore::barrier(Block& block) {
  block.ordered_at = clock_++;
  ViewPointer all;
  for (const Thread& t : block.threads) all = joined(all, t.knowledge->view);
  if (!all) return;
  for (Thread& t : block.threads) t.knowledge->view = all;
}

void HappensBefore::warp_barrier(Warp& warp, u32 lanes) {
  ViewPointer all;
  for (u32 lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) all = joined(all, warp.lanes[lane]->knowledge->view);
  }
  if (lanes == warp.exist) {
    warp.ordered_at = clock_;
  } else {
    auto view = std::make_shared<View>();
    for (u32 lane = 0; lane < 32; ++lane) {
      if (lanes >> lane & 1) view->push_back({thread_key(warp.lanes[lane]->number), clock_});
    }
    all = joined(all, view);
  }
  ++clock_;
  if (!all) return;
  for (u32 lane = 0; lane < 32; ++lane) {
    if (lanes >> lane & 1) warp.lanes[lane]->knowledge->view = all;
  }
}

void HappensBefore::fence(Thread& t, u32 how) {
  Knowledge& own = *t.knowledge;
  own.view = joined(own.view, own.seen_by_block);
  own.seen_by_block = nullptr;
  if (!(how & kBlockScope)) {
    own.view = joined(own.view, own.seen_by_device);
    own.seen_by_device = nullptr;
  }
  own.fenced_for_block = all_that_is_known(t);
  if (!(how & kBlockScope)) own.fenced_for_device = own.fenced_for_block;
  ++clock_;
}

void HappensBefore::strong_access(Thread& t, u64 address, u32 how) {
  Knowledge& own = *t.knowledge;
  const u32 kind = how & kKind;
  const auto at = released_.find(address);
  if (kind != kStore && !(how & kSilent) && at != released_.end()) {
    const Released& found = at->second;
    const ViewPointer block = found.block == t.block->number ? found.to_block : nullptr;
    own.seen_by_device = joined(own.seen_by_device, found.to_device);
    own.seen_by_block = joined(own.seen_by_block, block);
    if (how & kAcquire) {
      own.view = joined(own.view, block);
      if (!(how & kBlockScope)) own.view = joined(own.view, found.to_device);
    }
  }
  if (kind == kLoad) return;
  Released mine{own.fenced_for_device, own.fenced_for_block, t.block->number};
  if (how & kRelease) {
    mine.to_block = all_that_is_known(t);
    if (!(how & kBlockScope)) mine.to_device = mine.to_block;
    ++clock_;
  }
  if (how & kBlockScope) mine.to_device = nullptr;
  if (kind == kAtomic && at != released_.end()) {  // what was released before stays so
    mine.to_device = joined(mine.to_device, at->second.to_device);
    if (at->second.block == mine.block) mine.to_block = joined(mine.to_block, at->second.to_block);
  }
  released_[address] = mine;
}

void HappensBefore::weak_store(u64 address) {
  if (!released_.empty()) released_.erase(address);
}

void HappensBefore::forget(u64 address, u64 size) {
  for (auto at = released_.begin(); at != released_.end();) {
    at = at->first - address < size ? released_.erase(at) : std::next(at);
  }
}

}  // namespace ptx
