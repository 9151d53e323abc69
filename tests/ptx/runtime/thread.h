// What the code translated from PTX sees of the runtime: its thread, checked memory, collectives.
#pragma once

#include "values.h"

namespace ptx {

struct Block;
struct Knowledge;
struct Warp;

// How an instruction accesses memory.
enum How : u32 {
  kLoad = 0,
  kStore = 1,
  kAtomic = 2,
  kKind = 3,    // mask of the three above
  kStrong = 4,  // volatile, relaxed or with one of the semantics below
  kAcquire = 8,
  kRelease = 16,
  kBlockScope = 32,  // strong within the thread block alone
  kSilent = 64,      // an atomic that does not return the old value
  kLate = 128,       // a load that counts only if `needed` follows
  kWaiting = 256,    // a store that the lanes of a warp make together, later
};

enum FaultKind : u32 {
  kNoFault,
  kOutOfBounds,
  kMisaligned,
  kDeadlock,
  kBadMask,
  kTimeout,
  kAssertion,
  kTrap,
  kUnsupported,
};

struct Thread {
  u32 tid[3], ntid[3], ctaid[3], nctaid[3];
  u32 lane, index;  // in the warp, in the thread block
  u32 number;       // in the order of accesses
  // Global memory that needs no further check: where the last access was. Empty while accesses
  // are observed, so that all of them go through `reach`. The limit of shared memory likewise.
  u64 low, high;  // high >= 16, the longest access
  u64 shared_limit;
  u8* shared;
  u64 shared_bytes, dynamic_offset;
  u8* parameters;
  u64 parameter_bytes;
  s64 fuel;                 // backward branches until the next look at the clock
  u64 given[5], result[4];  // of the collective that the thread waits for
  Block* block;
  Warp* warp;
  Knowledge* knowledge;  // of others, for the order of accesses
  void* stack_pointer;
  int stack;  // index of its stack, -1 without one
  u32 state, line;

  u32 block_threads() const { return ntid[0] * ntid[1] * ntid[2]; }
};

[[noreturn]] void fail(Thread*, FaultKind, u32 line, const char* message = "", u64 address = 0,
                       u64 size = 0);
void reach(Thread*, u64 address, u64 size, u32 line, u32 how);
void reach_shared(Thread*, u64 offset, u64 size, u32 line, u32 how);
void out_of_fuel(Thread*, u32 line);
void needed(Thread*, const u8* from, u64 size, u32 line);
void fence(Thread*, u32 how);

// Waits for all threads of the block; the number of them whose `vote` is true.
u32 block_barrier(Thread*, u32 id, bool vote, u32 line);
// Waits for the lanes of `mask`; then `combine` computes `result` from `given` for all of them.
using Combine = void (*)(Warp&, u32 lanes, u32 variant);
void collective(Thread*, u32 mask, Combine combine, u32 variant, u32 line);
void order_lanes(Warp&, u32 lanes, u32);
void shuffle(Warp&, u32 lanes, u32 mode);
void load_matrices(Warp&, u32 lanes, u32 variant);
void store_matrices(Warp&, u32 lanes, u32 variant);
void failed_assertion(Thread*, u64 what, u64 file, u32 row, u64 function, u32 line);

extern u64 executed[2];  // instructions, multiply-adds among them

inline bool unlikely(bool x) { return __builtin_expect(x, false); }

template <u32 how>
inline u8* global(Thread* t, u64 address, u64 size, u32 line) {
  if (unlikely(address & (size - 1))) fail(t, kMisaligned, line, "", address, size);
  if (unlikely(address < t->low || address > t->high - size)) reach(t, address, size, line, how);
  return reinterpret_cast<u8*>(address);
}

template <u32 how>
inline u8* shared(Thread* t, u64 offset, u64 size, u32 line) {
  if (unlikely(offset & (size - 1))) fail(t, kMisaligned, line, "shared memory", offset, size);
  if (unlikely(offset >= t->shared_limit || offset + size > t->shared_limit)) {
    reach_shared(t, offset, size, line, how);
  }
  return t->shared + offset;
}

inline u8* parameter(Thread* t, u64 address, u64 size, u32 line) {
  const u64 offset = address - reinterpret_cast<u64>(t->parameters);
  if (unlikely(address & (size - 1))) fail(t, kMisaligned, line, "parameters", offset, size);
  if (unlikely(offset >= t->parameter_bytes || offset + size > t->parameter_bytes)) {
    fail(t, kOutOfBounds, line, "parameters", offset, size);
  }
  return reinterpret_cast<u8*>(address);
}

inline void branch_back(Thread* t, u32 line) {
  if (unlikely(--t->fuel < 0)) out_of_fuel(t, line);
}

}  // namespace ptx
