// The compiler-specific keywords of the block mathematics.
#pragma once

#if defined(__CUDACC__)
#define MBF_INLINE __host__ __device__ __forceinline__
#define MBF_INLINE_LAMBDA
#define MBF_UNROLL _Pragma("unroll")
#elif defined(__clang__)
#define MBF_INLINE __attribute__((always_inline)) inline
#define MBF_INLINE_LAMBDA __attribute__((always_inline))
#define MBF_UNROLL _Pragma("clang loop unroll(full)")
#else
#define MBF_INLINE __attribute__((always_inline)) inline
#define MBF_INLINE_LAMBDA __attribute__((always_inline))
#define MBF_UNROLL _Pragma("GCC unroll 64")
#endif
