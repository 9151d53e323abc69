// What threads wait for: barriers of a block, and collectives of a warp.
#include <cstdio>

#include "launch.h"

namespace ptx {

namespace {

template <class F>
void for_lanes(u32 lanes, F f) {
  for (; lanes != 0; lanes &= lanes - 1) f(__builtin_ctz(lanes));
}

// Completes the collective that lanes wait for with this mask, if all of them are there. Lanes
// that have ended are not waited for.
bool try_collective(Warp& warp, const Post& wanted) {
  const u32 lanes = wanted.mask & warp.live;
  if (lanes == 0) return false;
  bool complete = true;
  for_lanes(lanes, [&](int lane) {
    const Post& post = warp.posts[lane];
    complete &= post.waiting && post.mask == wanted.mask && post.combine == wanted.combine &&
                post.variant == wanted.variant;
  });
  if (!complete) return false;
  wanted.combine(warp, lanes, wanted.variant);
  for_lanes(lanes, [&](int lane) {
    warp.posts[lane].waiting = false;
    warp.lanes[lane]->state = kReady;
  });
  return true;
}

}  // namespace

u32 block_barrier(Thread* t, u32 id, bool vote, u32 line) {
  Block& block = *t->block;
  t->state = kAtBarrier;
  t->line = line;
  id %= 16;
  block.votes[id] += vote;
  if (++block.arrived[id] < block.threads.size()) {
    leave(t);
    return static_cast<u32>(t->result[0]);
  }
  for (Thread& other : block.threads) {
    other.result[0] = block.votes[id];
    other.state = kReady;
  }
  block.arrived[id] = block.votes[id] = 0;
  if (launch->races) launch->races->order().barrier(block);
  return static_cast<u32>(t->result[0]);
}

void collective(Thread* t, u32 mask, Combine combine, u32 variant, u32 line) {
  if ((mask >> t->lane & 1) == 0) fail(t, kBadMask, line, "the lane is not in its own mask");
  const Post post{combine, mask, variant, true};
  t->warp->posts[t->lane] = post;
  t->state = kAtCollective;
  t->line = line;
  if (!try_collective(*t->warp, post)) leave(t);
}

void thread_ended(Thread& t) {
  t.warp->live &= ~(1u << t.lane);
  for_lanes(t.warp->live, [&](int lane) {
    const Post post = t.warp->posts[lane];
    if (post.waiting) try_collective(*t.warp, post);
  });
}

void order_lanes(Warp& warp, u32 lanes, u32) {
  if (launch->races) launch->races->order().warp_barrier(warp, lanes);
}

// given: value, lane or distance, clamp and segment. result: value, whether the source is in range.
void shuffle(Warp& warp, u32 lanes, u32 mode) {
  for_lanes(lanes, [&](int lane) {
    Thread& t = *warp.lanes[lane];
    const int distance = t.given[1] & 31;
    const int clamp = t.given[2] & 31;
    const int segment = t.given[2] >> 8 & 31;
    const int most = (lane & segment) | (clamp & ~segment & 31);
    int source = lane;
    switch (mode) {
      case 0: source = lane - distance; break;
      case 1: source = lane + distance; break;
      case 2: source = lane ^ distance; break;
      default: source = (lane & segment) | (distance & ~segment & 31);
    }
    const bool inside = mode == 0 ? source >= most : source <= most;
    if (!inside) source = lane;
    t.result[1] = inside;
    if (!(lanes >> source & 1)) {
      fail(&t, kBadMask, t.line, "shfl reads a lane that does not take part");
    }
    t.result[0] = warp.lanes[source]->given[0];
  });
}

namespace {

// Where a lane has element i, 0 or 1, of its register of a matrix of 8 x 8 elements.
u8* matrix_element(Warp& warp, u32 matrix, int lane, int i, bool transposed) {
  const int outer = lane / 4, inner = lane % 4 * 2 + i;
  const int row = transposed ? inner : outer, column = transposed ? outer : inner;
  const u64 address = warp.lanes[8 * matrix + u32(row)]->given[0];
  return reinterpret_cast<u8*>(address) + 2 * column;
}

template <class F>  // f(thread, matrix, i, element)
void for_elements(Warp& warp, u32 lanes, u32 variant, F f) {
  for_lanes(lanes, [&](int lane) {
    for (u32 matrix = 0; matrix < (variant & 15); ++matrix) {
      for (int i = 0; i < 2; ++i) {
        f(*warp.lanes[lane], matrix, i, matrix_element(warp, matrix, lane, i, variant & 16));
      }
    }
  });
}

}  // namespace

// given: the address of a row of 8 x 2 bytes, from every eighth lane on for another matrix.
// variant: the number of matrices, and 16 if they are transposed.
void load_matrices(Warp& warp, u32 lanes, u32 variant) {
  for_elements(warp, lanes, variant, [](Thread& t, u32 matrix, int i, u8* element) {
    const u64 before = i == 0 ? 0 : t.result[matrix];
    t.result[matrix] = before | u64{load<u16>(element)} << 16 * i;
  });
}

// given: the same and the registers.
void store_matrices(Warp& warp, u32 lanes, u32 variant) {
  for_elements(warp, lanes, variant, [](Thread& t, u32 matrix, int i, u8* element) {
    store(element, static_cast<u16>(t.given[1 + matrix] >> 16 * i));
  });
}

void failed_assertion(Thread* t, u64 what, u64 file, u32 row, u64 function, u32 line) {
  char message[900];
  const auto text = [](u64 address) { return reinterpret_cast<const char*>(address); };
  std::snprintf(message, sizeof message, "%s:%u: %s: %s", text(file), row, text(function),
                text(what));
  fail(t, kAssertion, line, message);
}

}  // namespace ptx
