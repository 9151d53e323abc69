// Independent multiply-adds on registers alone: the most a core can do. 12 chains hide a latency of
// up to 6 cycles at two a cycle and leave registers for the constants.
#include <cstdint>

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif
typedef float Lanes __attribute__((vector_size(4 * kLanes)));

// Floating-point operations done; `out` keeps the compiler from dropping them. Every chain starts
// from its own number: equal chains would be merged into one.
extern "C" int64_t fma_loop(int64_t rounds, const float* start, float* out) {
  constexpr int kChains = 12;
  Lanes a[kChains];
  for (int c = 0; c < kChains; ++c) a[c] = Lanes{} + start[c];
  const Lanes x = Lanes{} + 0.999f, y = Lanes{} + 0.001f;
  for (int64_t i = 0; i < rounds; ++i) {
#pragma GCC unroll 12
    for (int c = 0; c < kChains; ++c) a[c] = a[c] * x + y;
  }
  Lanes sum = a[0];
  for (int c = 1; c < kChains; ++c) sum += a[c];
  *out = sum[0];
  return rounds * kChains * kLanes * 2;
}
