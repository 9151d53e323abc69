#include "races.h"

#include "launch.h"

namespace ptx {

namespace {
constexpr size_t kReported = 16;
}

bool Races::conflict(const Trace& earlier, const Trace& later, const Thread& t) const {
  if (earlier.time == 0 || earlier.thread == later.thread) return false;
  if ((earlier.how & kKind) == kLoad && (later.how & kKind) == kLoad) return false;
  if (earlier.how & later.how & kStrong) {
    const bool narrow = (earlier.how | later.how) & kBlockScope;
    if (!narrow || order_.block_of(earlier.thread) == t.block->number) return false;
  }
  return !order_.knows(t, earlier.thread, earlier.time);
}

// Whether a strong load or an atomic, by this thread or before something that it knows of, has read
// what a strong store wrote. Then that store, though nothing else of its thread, happened before.
bool Races::seen(Cell& cell, const Trace& store, const Thread& t) {
  if (!(store.how & kStrong)) return false;
  bool found = false;
  shadow_.for_others(cell, [&](const Trace& reader) {
    const bool reads = (reader.how & kStrong) && (reader.how & kKind) != kStore;
    found |= reads && !(reader.how & kSilent) && reader.time > store.time &&
             order_.knows(t, reader.thread, reader.time);
  });
  return found;
}

void Races::access(Thread& t, u64 address, u64 size, u32 line, u32 how, bool in_shared_memory) {
  settle();
  const bool strong = how & kStrong;
  const Time now = strong ? order_.tick() : order_.now();
  const Trace trace{t.number, now, line, how};
  const bool weak_store = (how & (kKind | kStrong)) == kStore;
  Trace other{};
  shadow_.for_cells(address, size, [&](Cell& cell) {
    const auto compare = [&](const Trace& earlier) {
      if (other.time != 0 || !conflict(earlier, trace, t)) return;
      if (!seen(cell, earlier, t)) other = earlier;
    };
    compare(cell.store);
    shadow_.for_others(cell, compare);
    if (weak_store) {
      shadow_.set_store(cell, trace);
    } else {
      shadow_.add_other(cell, trace, t, order_);
    }
  });
  if (strong) order_.strong_access(t, address, how);
  if (weak_store) order_.weak_store(address);
  if (other.time == 0) return;

  Race race{address, static_cast<u32>(size), in_shared_memory, {}};
  if (in_shared_memory) race.address -= reinterpret_cast<u64>(t.shared);
  const Trace sides[] = {other, trace};
  for (int i = 0; i < 2; ++i) {
    const u32 block = order_.block_of(sides[i].thread);
    race.sides[i] = {sides[i].line, sides[i].how, block, order_.index_of(sides[i].thread)};
  }
  if (!weak_store || !in_shared_memory || how & kWaiting) return report(race);
  doubt_.race = race;
  doubt_.address = address;
  std::memcpy(doubt_.before, reinterpret_cast<const u8*>(address), size);
  in_doubt_ = true;
}

void Races::settle() {
  if (!in_doubt_) return;
  in_doubt_ = false;
  const u8* now = reinterpret_cast<const u8*>(doubt_.address);
  if (std::memcmp(doubt_.before, now, doubt_.race.size) != 0) report(doubt_.race);
}

void Races::forget(u64 address, u64 size) {
  settle();
  shadow_.forget(address, size);
  order_.forget(address, size);
}

void Races::report(const Race& race) {
  ++count_;
  if (reported_.size() == kReported) return;
  for (const Race& known : reported_) {
    if (known.sides[0].line == race.sides[0].line && known.sides[1].line == race.sides[1].line) {
      return;
    }
  }
  reported_.push_back(race);
}

}  // namespace ptx
