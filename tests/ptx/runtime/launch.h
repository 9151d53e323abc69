// A launch: its request, its thread blocks and warps, and who checks their memory.
#pragma once

#include <memory>
#include <vector>

#include "races.h"
#include "thread.h"

namespace ptx {

struct Region {
  u64 low, high;
};

enum Order : u32 { kForward, kReverse, kRandom };

// What a launch is asked to do. tests/ptx/launch.py declares the same struct.
struct Request {
  void (*kernel)(Thread*);
  u32 grid[3], block[3];
  u8* parameters;
  u64 parameter_bytes;
  const Region* regions;  // of global memory, ascending and apart
  u64 region_count;
  u64 shared_bytes, dynamic_offset, stack_bytes;
  u64 seed, timeout_nanoseconds;
  u32 order, cooperative, poison, find_races, record_traffic, unused;
};

// The first thing that went wrong. tests/ptx/launch.py declares the same struct.
struct Fault {
  u32 kind, line;
  u64 address, size;
  u32 block[3], thread[3];
  char message[1024];
};

// An access to global memory. tests/ptx/traffic.py declares the same struct.
struct Record {
  u64 address;
  u32 bytes, line, program, thread, kind, unused;
};

struct Launch {
  explicit Launch(const Request& request);
  ~Launch();

  void run();
  bool observed() const { return races || request.record_traffic; }

  const Request& request;
  u32 threads_per_block;
  Fault fault{};
  std::vector<Record> records;
  std::unique_ptr<Races> races;  // null if they are not looked for
  void* scheduler = nullptr;     // its stack pointer while a thread runs
  size_t region = 0;             // the one accessed last

 private:
  void start(Block& block, u64 number);
  void run_resident(size_t count);
  void resume(Thread& thread);
  void explain_deadlock(size_t count);

  std::vector<Block> blocks_;  // those that are resident
  std::vector<u64> block_order_;
  std::vector<u64> thread_order_;
  std::vector<int> free_stacks_;
  u8* stacks_;
  size_t stack_bytes_;
  size_t stack_count_;
};

extern Launch* launch;  // the one that runs; there is one at a time

void leave(Thread* t);         // back to the scheduler
void thread_ended(Thread& t);  // lanes that wait for it go on

}  // namespace ptx
