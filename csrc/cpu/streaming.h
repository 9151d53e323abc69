// Prefetches and streaming stores.
#pragma once

#include <cstddef>
#include <cstring>

#include "lanes.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mbf {

// Fetches the cache line at p into the second-level cache.
MBF_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Stores past the cache: for memory that would be evicted before it is read again. A cache line
// that is written whole need not be fetched first. `to` is aligned to the size of the vector.
template <class V>
MBF_INLINE void stream_lanes(V x, void* to) {
  if constexpr (IsPair<V>::value) {
    stream_lanes(x.lo, to);
    stream_lanes(x.hi, static_cast<char*>(to) + sizeof(x.lo));
  } else {
#if defined(__AVX512F__)
    if constexpr (sizeof(V) == 64) {
      return _mm512_stream_si512(static_cast<__m512i*>(to), (__m512i)x.v);
    }
#endif
#if defined(__AVX__)
    if constexpr (sizeof(V) == 32) {
      return _mm256_stream_si256(static_cast<__m256i*>(to), (__m256i)x.v);
    }
#endif
#if defined(__SSE2__)
    if constexpr (sizeof(V) == 16) {
      return _mm_stream_si128(static_cast<__m128i*>(to), (__m128i)x.v);
    }
#endif
    std::memcpy(to, &x.v, sizeof x.v);
  }
}

// To be called after the last stream_lanes, before another thread reads what it stored.
MBF_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace mbf
