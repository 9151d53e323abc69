// Memory the caches should know about early, or not at all.
#pragma once

#include <cstddef>
#include <cstring>

#include "../core/macros.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

namespace mbf {

// The line at p will be read soon; into the second-level cache.
MBF_INLINE void prefetch(const void* p) { __builtin_prefetch(p, 0, 2); }

// Copies past the cache: the target is not read back before it would have been evicted anyway, and
// whole lines written this way need not be fetched first. Both must be 32-byte aligned.
MBF_INLINE void stream_out(const void* from, void* to, size_t bytes) {
  const char* source = static_cast<const char*>(from);
  char* target = static_cast<char*>(to);
#if defined(__AVX__)
  constexpr size_t kStep = 32;
  for (size_t i = 0; i < bytes; i += kStep) {
    const __m256i x = _mm256_load_si256(reinterpret_cast<const __m256i*>(source + i));
    _mm256_stream_si256(reinterpret_cast<__m256i*>(target + i), x);
  }
#elif defined(__SSE2__)
  constexpr size_t kStep = 16;
  for (size_t i = 0; i < bytes; i += kStep) {
    const __m128i x = _mm_load_si128(reinterpret_cast<const __m128i*>(source + i));
    _mm_stream_si128(reinterpret_cast<__m128i*>(target + i), x);
  }
#else
  std::memcpy(target, source, bytes);
#endif
}

// After the last stream_out and before another thread may read its target.
MBF_INLINE void stream_fence() {
#if defined(__SSE2__)
  _mm_sfence();
#endif
}

}  // namespace mbf
