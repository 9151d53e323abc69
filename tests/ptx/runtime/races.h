// Finds races: two accesses to the same memory by different threads, at least one of them a store,
// not both strong, of which neither happened before the other.
#pragma once

#include <vector>

#include "shadow.h"

namespace ptx {

// Two accesses that race, the earlier one first. tests/ptx/launch.py declares the same struct.
struct Race {
  u64 address;  // in shared memory: the offset
  u32 size, in_shared_memory;
  struct Side {
    u32 line, how, block, thread;
  } sides[2];
};

class Races {
 public:
  explicit Races(u32 threads_per_block) : order_(threads_per_block) {}

  void access(Thread& t, u64 address, u64 size, u32 line, u32 how, bool in_shared_memory);
  // Decides about the last store, which is no race if it has not changed its memory.
  void settle();
  void forget(u64 address, u64 size);

  HappensBefore& order() { return order_; }
  u64 count() const { return count_; }
  const std::vector<Race>& reported() const { return reported_; }

 private:
  bool conflict(const Trace& earlier, const Trace& later, const Thread& t) const;
  bool seen(Cell& cell, const Trace& store, const Thread& t);
  void report(const Race& race);

  HappensBefore order_;
  Shadow shadow_;
  u64 count_ = 0;
  std::vector<Race> reported_;  // one for each pair of lines, the first few

  // A store to shared memory that may be a race, with the bytes before it.
  struct Doubt {
    Race race;
    u64 address;
    u8 before[16];
  } doubt_;
  bool in_doubt_ = false;
};

}  // namespace ptx
