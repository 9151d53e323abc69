// Ways to run the parts of a job.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

using Body = std::function<void(int64_t, int64_t)>;

inline void serial(int64_t begin, int64_t end, int64_t, const Body& body) {
  if (begin < end) body(begin, end);
}

// In three threads, whatever the grain.
inline void threaded(int64_t begin, int64_t end, int64_t, const Body& body) {
  constexpr int kThreads = 3;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    const int64_t first = begin + (end - begin) * i / kThreads;
    const int64_t last = begin + (end - begin) * (i + 1) / kThreads;
    if (first < last) threads.emplace_back([&body, first, last] { body(first, last); });
  }
  for (auto& thread : threads) thread.join();
}
