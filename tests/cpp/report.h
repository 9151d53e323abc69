// Checks for the C++ tests: a line per failure, and a count of failures for the exit code.
#pragma once

#include <cstdio>
#include <cstdlib>

inline int failures = 0;
inline long checks = 0;

#define CHECK(condition, ...)                       \
  do {                                              \
    ++checks;                                       \
    if (!(condition)) {                             \
      if (++failures <= 20) {                       \
        std::printf("%s:%d: ", __FILE__, __LINE__); \
        std::printf(__VA_ARGS__);                   \
        std::printf("\n");                          \
      }                                             \
    }                                               \
  } while (0)

inline int finish() {
  std::printf("%ld checks, %d failures\n", checks, failures);
  return failures == 0 && checks > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
