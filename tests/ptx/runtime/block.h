// Thread blocks and warps: what they wait for, and what their threads know of each other.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "thread.h"

namespace ptx {

using Time = u32;

// Times by thread, warp or block, ascending by key. Views are shared and never change.
using View = std::vector<std::pair<u64, Time>>;
using ViewPointer = std::shared_ptr<const View>;

// What a thread knows beyond its block's barriers and its warp's.
struct Knowledge {
  ViewPointer view;
  // Of the values that it has read by strong loads and atomics; a fence adds them to the view.
  ViewPointer seen_by_device, seen_by_block;
  // What it knew at its last fence: its strong stores and atomics release this.
  ViewPointer fenced_for_device, fenced_for_block;
};

enum State : u32 { kReady, kAtBarrier, kAtCollective, kDone };

// What a lane has brought to a collective.
struct Post {
  Combine combine;
  u32 mask, variant;
  bool waiting;
};

struct Warp {
  Post posts[32];
  Thread* lanes[32];
  u32 exist, live;  // masks of lanes
  u32 ordered_at;   // time of the last bar.warp.sync of all lanes
  Block* block;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Knowledge> knowledge;
  std::vector<Warp> warps;
  u8* shared;
  u32 number;       // in the grid
  u32 arrived[16];  // threads at each barrier
  u32 votes[16];    // those that voted for it
  u32 ordered_at;   // time of the last barrier
};

}  // namespace ptx
