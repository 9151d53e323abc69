// AVX-512 for compilers that target AVX2, by SIMDe: included before everything else (-include), it
// makes csrc/cpu take its AVX-512 code, which then runs on machines without AVX-512.
#pragma once

#define SIMDE_ENABLE_NATIVE_ALIASES
#include <simde/x86/avx512.h>

// Not in SIMDe 0.7.4.
inline __m128d mbf_extractf64x2(__m512d x, int quarter) {
  __m128d part;
  __builtin_memcpy(&part, reinterpret_cast<const char*>(&x) + 16 * quarter, sizeof part);
  return part;
}
inline void mbf_stream_si512(__m512i* to, __m512i x) {
  __m256i halves[2];
  __builtin_memcpy(halves, &x, sizeof x);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), halves[0]);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to) + 1, halves[1]);
}
#undef _mm512_extractf64x2_pd
#define _mm512_extractf64x2_pd(x, quarter) mbf_extractf64x2(x, quarter)
#undef _mm512_stream_si512
#define _mm512_stream_si512(to, x) mbf_stream_si512(to, x)

// Last, because SIMDe would take these for the real thing.
#define __AVX512F__ 1
#define __AVX512DQ__ 1
#define __AVX512BW__ 1
#define __AVX512VL__ 1
