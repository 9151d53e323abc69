// Which accesses happen before others: the order that barriers, fences and atomics make.
//
// One clock counts the synchronisations of a launch; since only one thread runs at a time, every
// access has a time. What a thread knows of another one is a time, too: all that the other one did
// until then has happened before. A barrier tells all threads of a block the same about each other,
// so the block keeps that time for all of them, and a warp likewise. The rest, what atomics bring
// from elsewhere, is in a view.
#pragma once

#include <algorithm>
#include <bit>
#include <unordered_map>

#include "block.h"

namespace ptx {

class HappensBefore {
 public:
  explicit HappensBefore(u32 threads_per_block)
      : shift_(static_cast<u32>(std::bit_width(std::max(threads_per_block, 32u) - 1))) {}

  Time now() const { return clock_; }
  Time tick() { return clock_++; }  // for an access that gets a time of its own
  // Threads and warps are numbered through all blocks; blocks are made powers of two for that.
  u32 thread_number(u32 block, u32 index) const { return block << shift_ | index; }
  u32 block_of(u32 thread) const { return thread >> shift_; }
  u32 warp_of(u32 thread) const { return thread / 32; }
  u32 index_of(u32 thread) const { return thread & ((1u << shift_) - 1); }

  // Whether everything that `thread` did until `time` has happened before what `t` does now.
  bool knows(const Thread& t, u32 thread, Time time) const {
    if (thread == t.number) return true;
    if (block_of(thread) == block_of(t.number) && time <= t.block->ordered_at) return true;
    if (warp_of(thread) == warp_of(t.number) && time <= t.warp->ordered_at) return true;
    const View* view = t.knowledge->view.get();
    return view != nullptr && knows_from_elsewhere(*view, thread, time);
  }

  void barrier(Block& block);
  void warp_barrier(Warp& warp, u32 lanes);
  void fence(Thread& t, u32 how);
  void strong_access(Thread& t, u64 address, u32 how);
  void weak_store(u64 address);
  void forget(u64 address, u64 size);

 private:
  // What the last store to an address, and the atomics since, have released.
  struct Released {
    ViewPointer to_device, to_block;
    u32 block;
  };

  bool knows_from_elsewhere(const View& view, u32 thread, Time time) const;
  ViewPointer all_that_is_known(const Thread& t) const;

  u32 shift_;
  Time clock_ = 1;
  std::unordered_map<u64, Released> released_;
};

}  // namespace ptx
