// The scheduler. A thread is a fiber that runs until it waits for others or ends; then the next
// one runs. Nothing happens at the same time, so that every launch can be repeated exactly.
#include "launch.h"

#include <sys/mman.h>
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <string>

// Saves the registers that calls preserve and the stack pointer, and continues where another
// stack stopped.
extern "C" void ptx_switch(void** save, void* load);
asm(R"(
.text
.globl ptx_switch
.type ptx_switch,@function
ptx_switch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp,(%rdi)
  movq %rsi,%rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size ptx_switch,.-ptx_switch
)");

namespace ptx {

Launch* launch = nullptr;
u64 executed[2];

namespace {

constexpr s64 kFuel = 20000;
constexpr size_t kPage = 4096;
u64 deadline = 0;
Thread* started = nullptr;

size_t rounded_up(size_t x, size_t unit) { return (x + unit - 1) / unit * unit; }

std::vector<u64> ordered(u64 count, u32 order, u64 seed) {
  std::vector<u64> list(count);
  std::iota(list.begin(), list.end(), 0);
  if (order == kReverse) std::reverse(list.begin(), list.end());
  if (order == kRandom) {
    u64 state = seed * 2654435761u + 88172645463325252u;
    for (u64 i = count; i > 1; --i) {
      state ^= state << 13;
      state ^= state >> 7;
      state ^= state << 17;
      std::swap(list[i - 1], list[state % i]);
    }
  }
  return list;
}

void place(u32 (&position)[3], u64 index, const u32 (&extent)[3]) {
  position[0] = static_cast<u32>(index % extent[0]);
  position[1] = static_cast<u32>(index / extent[0] % extent[1]);
  position[2] = static_cast<u32>(index / extent[0] / extent[1]);
}

void begin() {
  Thread* t = started;
  launch->request.kernel(t);
  t->state = kDone;
  leave(t);
  std::abort();
}

void* prepared(u8* stack_end) {
  void** top = reinterpret_cast<void**>(stack_end - 64);
  *--top = nullptr;  // where a call would have left its return address: aligns the stack
  *--top = reinterpret_cast<void*>(begin);
  for (int saved = 0; saved < 6; ++saved) *--top = nullptr;
  return top;
}

u64 nanoseconds() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return u64(now.tv_sec) * 1'000'000'000 + u64(now.tv_nsec);
}

}  // namespace

void leave(Thread* t) { ptx_switch(&t->stack_pointer, launch->scheduler); }

void fail(Thread* t, FaultKind kind, u32 line, const char* message, u64 address, u64 size) {
  Fault& fault = launch->fault;
  fault.kind = kind;
  fault.line = line;
  fault.address = address;
  fault.size = size;
  std::copy_n(t->ctaid, 3, fault.block);
  std::copy_n(t->tid, 3, fault.thread);
  std::snprintf(fault.message, sizeof fault.message, "%s", message);
  t->state = kDone;
  leave(t);
  std::abort();
}

void out_of_fuel(Thread* t, u32 line) {
  t->fuel = kFuel;
  if (nanoseconds() > deadline) fail(t, kTimeout, line, "an endless loop?");
  leave(t);  // others may have to release a loop that waits
}

Launch::Launch(const Request& r) : request(r) {
  threads_per_block = r.block[0] * r.block[1] * r.block[2];
  const u64 grid = u64{r.grid[0]} * r.grid[1] * r.grid[2];
  blocks_.resize(r.cooperative ? grid : 1);
  block_order_ = ordered(grid, r.order, r.seed + 1);
  thread_order_ = ordered(blocks_.size() * threads_per_block, r.order, r.seed + 13);
  for (Block& block : blocks_) {
    block.threads.resize(threads_per_block);
    block.knowledge.resize(threads_per_block);
    block.warps.resize((threads_per_block + 31) / 32);
    // Zero bytes would be no place at all.
    block.shared = static_cast<u8*>(std::aligned_alloc(1024, rounded_up(r.shared_bytes + 1, 1024)));
  }
  stack_bytes_ = rounded_up(r.stack_bytes, kPage);
  stack_count_ = thread_order_.size();
  // Pages are made when they are touched: threads that never wait use one stack after the other.
  void* mapped = mmap(nullptr, stack_bytes_ * stack_count_, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) std::perror("stacks of threads"), std::abort();
  stacks_ = static_cast<u8*>(mapped);
  for (size_t i = stack_count_; i > 0; --i) free_stacks_.push_back(static_cast<int>(i - 1));
  if (r.find_races) races = std::make_unique<Races>(threads_per_block);
  deadline = nanoseconds() + r.timeout_nanoseconds;
}

Launch::~Launch() {
  for (Block& block : blocks_) std::free(block.shared);
  munmap(stacks_, stack_bytes_ * stack_count_);
}

void Launch::start(Block& block, u64 number) {
  const Request& r = request;
  block.number = static_cast<u32>(number);
  block.ordered_at = 0;
  std::fill_n(block.arrived, 16, 0);
  std::fill_n(block.votes, 16, 0);
  std::fill(block.knowledge.begin(), block.knowledge.end(), Knowledge{});
  std::memset(block.shared, static_cast<int>(r.poison), r.shared_bytes);
  if (races) races->forget(reinterpret_cast<u64>(block.shared), r.shared_bytes);
  for (Warp& warp : block.warps) {
    warp = {};
    warp.block = &block;
  }
  for (u32 i = 0; i < threads_per_block; ++i) {
    Thread& t = block.threads[i];
    t = {};
    place(t.tid, i, r.block);
    place(t.ctaid, number, r.grid);
    std::copy_n(r.block, 3, t.ntid);
    std::copy_n(r.grid, 3, t.nctaid);
    t.lane = i % 32;
    t.index = i;
    if (races) t.number = races->order().thread_number(block.number, i);
    t.low = ~u64{0};
    t.high = 16;
    t.shared = block.shared;
    t.shared_bytes = r.shared_bytes;
    t.shared_limit = races ? 0 : r.shared_bytes;
    t.dynamic_offset = r.dynamic_offset;
    t.parameters = r.parameters;
    t.parameter_bytes = r.parameter_bytes;
    t.fuel = kFuel;
    t.block = &block;
    t.knowledge = &block.knowledge[i];
    t.warp = &block.warps[i / 32];
    t.warp->lanes[t.lane] = &t;
    t.warp->live |= 1u << t.lane;
    t.stack = -1;
  }
  for (Warp& warp : block.warps) warp.exist = warp.live;
}

void Launch::resume(Thread& t) {
  if (t.stack < 0) {
    t.stack = free_stacks_.back();
    free_stacks_.pop_back();
    t.stack_pointer = prepared(stacks_ + stack_bytes_ * (u64(t.stack) + 1));
    started = &t;
  }
  ptx_switch(&scheduler, t.stack_pointer);
  if (t.state == kDone) {
    free_stacks_.push_back(t.stack);
    thread_ended(t);
  }
}

void Launch::run_resident(size_t count) {
  size_t left = count * threads_per_block;
  while (left > 0) {
    bool moved = false;
    for (u64 index : thread_order_) {
      if (index >= count * threads_per_block) continue;
      Thread& t = blocks_[index / threads_per_block].threads[index % threads_per_block];
      if (t.state != kReady) continue;
      moved = true;
      resume(t);
      if (fault.kind != kNoFault) return;
      if (t.state == kDone) --left;
    }
    if (!moved) return explain_deadlock(count);
  }
}

void Launch::run() {
  for (u64 next = 0; next < block_order_.size() && fault.kind == kNoFault;) {
    size_t count = 0;
    for (; count < blocks_.size() && next < block_order_.size(); ++count, ++next) {
      start(blocks_[count], block_order_[next]);
    }
    run_resident(count);
  }
  if (races) races->settle();
}

void Launch::explain_deadlock(size_t count) {
  std::string message = "nobody can go on;";
  u32 last_line = 0;
  for (size_t b = 0; b < count && message.size() < sizeof fault.message; ++b) {
    u32 ended = 0;
    for (Thread& t : blocks_[b].threads) {
      if (t.state == kDone) ++ended;
      if (t.state == kDone || t.line == last_line) continue;
      last_line = t.line;
      const char* what = t.state == kAtBarrier ? "a barrier" : "lanes of its warp";
      if (fault.kind == kNoFault) {
        fault.kind = kDeadlock;
        fault.line = t.line;
        std::copy_n(t.ctaid, 3, fault.block);
        std::copy_n(t.tid, 3, fault.thread);
      }
      message += " thread " + std::to_string(t.index) + " of block " +
                 std::to_string(blocks_[b].number) + " waits for " + what + " in line " +
                 std::to_string(t.line) + ";";
    }
    if (ended) message += " " + std::to_string(ended) + " threads have ended;";
  }
  std::snprintf(fault.message, sizeof fault.message, "%s", message.c_str());
}

}  // namespace ptx

// --- the interface of launch.py -----------------------------------------------------------------

namespace {
std::unique_ptr<ptx::Launch> last;  // whose results are still read
}

extern "C" {

const ptx::Fault* ptx_launch(const ptx::Request* request) {
  last = std::make_unique<ptx::Launch>(*request);
  ptx::launch = last.get();
  ptx::executed[0] = ptx::executed[1] = 0;
  last->run();
  return &last->fault;
}

ptx::u64 ptx_record_count() { return last->records.size(); }
const ptx::Record* ptx_records() { return last->records.data(); }
ptx::u64 ptx_race_count() { return last->races ? last->races->count() : 0; }
ptx::u64 ptx_reported_count() { return last->races ? last->races->reported().size() : 0; }
const ptx::Race* ptx_races() { return last->races->reported().data(); }
ptx::u64 ptx_executed(int kind) { return ptx::executed[kind]; }

}  // extern "C"
