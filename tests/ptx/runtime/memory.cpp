// Accesses that the fast path in thread.h does not decide about.
#include "launch.h"

namespace ptx {

namespace {

bool inside(u64 address, u64 size, u64 low, u64 high) {
  return address >= low && address <= high && size <= high - address;
}

// The region that holds these bytes, or null.
const Region* region_of(u64 address, u64 size) {
  const Request& r = launch->request;
  const Region* known = r.regions + launch->region;
  if (launch->region < r.region_count && inside(address, size, known->low, known->high)) {
    return known;
  }
  const Region* end = r.regions + r.region_count;
  const Region* found = std::upper_bound(
      r.regions, end, address, [](u64 x, const Region& region) { return x < region.high; });
  if (found == end || !inside(address, size, found->low, found->high)) return nullptr;
  launch->region = static_cast<size_t>(found - r.regions);
  return found;
}

}  // namespace

void reach(Thread* t, u64 address, u64 size, u32 line, u32 how) {
  const Request& r = launch->request;
  const u64 shared = reinterpret_cast<u64>(t->shared);
  if (inside(address, size, shared, shared + t->shared_bytes)) {
    return reach_shared(t, address - shared, size, line, how);
  }
  const u64 parameters = reinterpret_cast<u64>(r.parameters);
  if ((how & kKind) == kLoad && inside(address, size, parameters, parameters + r.parameter_bytes))
    return;
  const Region* region = region_of(address, size);
  if (region == nullptr) fail(t, kOutOfBounds, line, "", address, size);
  if (launch->races && !(how & kLate)) {
    launch->races->access(*t, address, size, line, how, false);
  }
  if (r.record_traffic) {
    const u32 program = t->block->number;
    launch->records.push_back(
        {address, static_cast<u32>(size), line, program, t->index, how & kKind, 0});
  }
  if (launch->observed()) return;
  t->low = region->low;
  t->high = region->high;
}

void reach_shared(Thread* t, u64 offset, u64 size, u32 line, u32 how) {
  if (!inside(offset, size, 0, t->shared_bytes)) {
    fail(t, kOutOfBounds, line, "shared memory", offset, size);
  }
  if (!launch->races || how & kLate) return;
  launch->races->access(*t, reinterpret_cast<u64>(t->shared) + offset, size, line, how, true);
}

// A store is about to use what an earlier load, kLate, has brought. No other thread came in
// between.
void needed(Thread* t, const u8* from, u64 size, u32 line) {
  if (!launch->races || from == nullptr) return;
  const u64 address = reinterpret_cast<u64>(from);
  const u64 shared = reinterpret_cast<u64>(t->shared);
  const bool in_shared_memory = inside(address, size, shared, shared + t->shared_bytes);
  launch->races->access(*t, address, size, line, kLoad, in_shared_memory);
}

void fence(Thread* t, u32 how) {
  if (launch->races) launch->races->order().fence(*t, how);
}

}  // namespace ptx
