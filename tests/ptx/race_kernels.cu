// Kernels with and without races. `Broken` says what is wrong with one; 0: nothing.
#include <cuda_fp16.h>

constexpr int kThreads = 64;

template <int Broken>
__global__ void sum_in_tree(const float* in, float* out) {
  __shared__ float sums[kThreads];
  const int i = threadIdx.x;
  sums[i] = in[blockIdx.x * kThreads + i];
  if (Broken != 1) __syncthreads();
  for (int half = kThreads / 2; half > 0; half /= 2) {
    if (i < half) sums[i] += sums[i + half];
    if (Broken != 2) __syncthreads();
  }
  if (i == 0) out[blockIdx.x] = sums[0];
}

// The last thread block adds up what all of them have written.
template <int Broken>
__global__ void sum_by_ticket(const float* in, float* parts, int* ticket, float* out) {
  __shared__ bool is_last;
  const int i = threadIdx.x;
  parts[blockIdx.x * kThreads + i] = 2 * in[blockIdx.x * kThreads + i];
  if (Broken != 1) __syncthreads();
  if (i == 0) {
    if (Broken == 2) __threadfence_block();
    if (Broken != 2 && Broken != 3) __threadfence();
    is_last = atomicAdd(ticket, 1) == gridDim.x - 1;
    if (Broken != 4) __threadfence();
  }
  __syncthreads();
  if (!is_last) return;
  float sum = 0;
  for (int block = 0; block < gridDim.x; ++block) sum += parts[block * kThreads + i];
  out[i] = sum;
  if (i == 0) *ticket = 0;
}

// The same with the fences as part of the atomic.
template <int Broken>
__global__ void sum_by_ordered_ticket(const float* in, float* parts, int* ticket, float* out) {
  __shared__ bool is_last;
  const int i = threadIdx.x;
  parts[blockIdx.x * kThreads + i] = 2 * in[blockIdx.x * kThreads + i];
  __syncthreads();
  if (i == 0) {
    int before;
    if (Broken == 0) {
      asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(ticket)
                   : "memory");
    } else if (Broken == 1) {
      asm volatile("atom.relaxed.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(ticket)
                   : "memory");
    } else if (Broken == 2) {
      asm volatile("atom.release.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(ticket)
                   : "memory");
    } else if (Broken == 3) {
      asm volatile("atom.acquire.gpu.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(ticket)
                   : "memory");
    } else {
      asm volatile("atom.acq_rel.cta.global.add.s32 %0, [%1], 1;"
                   : "=r"(before)
                   : "l"(ticket)
                   : "memory");
    }
    is_last = before == gridDim.x - 1;
  }
  __syncthreads();
  if (!is_last) return;
  float sum = 0;
  for (int block = 0; block < gridDim.x; ++block) sum += parts[block * kThreads + i];
  out[i] = sum;
}

template <int Broken>
__global__ void rotate_in_warp(const float* in, float* out) {
  __shared__ float stage[kThreads];
  const int i = threadIdx.x;
  for (int step = 0; step < 3; ++step) {
    stage[i] = in[i] + step;
    if (Broken != 1) __syncwarp();
    out[i] = stage[i ^ 1];
    if (Broken != 2) __syncwarp();
  }
}

// Only half of the lanes wait for each other, in two groups.
template <int Broken>
__global__ void rotate_in_half_warp(const float* in, float* out) {
  __shared__ float stage[kThreads];
  const int i = threadIdx.x;
  const unsigned mask = i % 32 < 16 ? 0x0000ffffu : 0xffff0000u;
  stage[i] = in[i];
  __syncwarp(mask);
  out[i] = stage[Broken == 1 ? i ^ 16 : i ^ 1];
}

template <int Broken>
__global__ void sum_by_shuffles(const float* in, float* out) {
  __shared__ float sums[kThreads / 32];
  float x = in[threadIdx.x];
  for (int half = 16; half > 0; half /= 2) x += __shfl_down_sync(0xffffffffu, x, half);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  if (Broken != 1) __syncthreads();
  out[threadIdx.x] = sums[0] + sums[1];
}

// Two stages in turn: with one of them, a step would need two barriers.
template <int Broken>
__global__ void shift_with_two_stages(const float* in, float* out) {
  __shared__ float stages[2][kThreads];
  const int i = threadIdx.x;
  for (int step = 0; step < 4; ++step) {
    float* stage = stages[Broken == 1 ? 0 : step % 2];
    stage[i] = in[step * kThreads + i];
    if (Broken != 2) __syncthreads();
    out[step * kThreads + i] = stage[(i + 1) % kThreads];
  }
}

template <int Broken>
__global__ void count_in_shared_memory(const int* in, int* out) {
  __shared__ int counts[4];
  const int i = threadIdx.x;
  if (i < 4) counts[i] = 0;
  if (Broken != 1) __syncthreads();
  atomicAdd(&counts[in[i]], 1);
  if (Broken != 2) __syncthreads();
  if (i < 4) out[i] = counts[i];
}

template <int Broken>
__global__ void count_in_global_memory(const int* in, int* out) {
  int* count = &out[in[threadIdx.x]];
  if (Broken == 1 && blockIdx.x == 1) {
    *count = 1;
  } else {
    atomicAdd(count, 1);
  }
  if (Broken == 2 && *count == 0) out[0] = 0;
}

// Every element has one writer; neighbours in the same word have different ones.
template <int Broken>
__global__ void write_short_elements(__half* halves, unsigned char* bytes) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  halves[Broken == 1 ? i / 2 : i] = __float2half(i);
  bytes[Broken == 2 ? i / 2 : i] = i;
}

template <int Broken>
__global__ void reverse_in_place(float* x) {
  const float mine = x[threadIdx.x];
  if (Broken != 1) __syncthreads();
  x[kThreads - 1 - threadIdx.x] = mine;
}

// All thread blocks have to be resident.
template <int Broken>
__global__ void exchange_over_grid(float* x, int* arrived, float* out) {
  const int i = blockIdx.x * kThreads + threadIdx.x;
  x[i] = i;
  if (Broken != 1) __syncthreads();
  if (threadIdx.x == 0) {
    if (Broken != 2) __threadfence();
    atomicAdd(arrived, 1);
    while (*static_cast<volatile int*>(arrived) < gridDim.x) {
    }
    if (Broken != 3) __threadfence();
  }
  __syncthreads();
  out[i] = x[gridDim.x * kThreads - 1 - i];
}

// One thread block waits for the flag of the other.
template <int Broken>
__global__ void pass_a_message(float* message, int* flag, float* out) {
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 0) {
    *message = 1;
    if (Broken == 1) {
      asm volatile("st.relaxed.gpu.s32 [%0], 1;" ::"l"(flag) : "memory");
    } else {
      asm volatile("st.release.gpu.s32 [%0], 1;" ::"l"(flag) : "memory");
    }
  } else {
    int seen = 0;
    while (seen == 0) {
      if (Broken == 2) {
        asm volatile("ld.relaxed.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      } else {
        asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(seen) : "l"(flag) : "memory");
      }
    }
    *out = *message;
  }
}

#define KERNEL(name, broken, ...) template __global__ void name<broken>(__VA_ARGS__);
#define BROKEN_1(name, ...) KERNEL(name, 0, __VA_ARGS__) KERNEL(name, 1, __VA_ARGS__)
#define BROKEN_2(name, ...) BROKEN_1(name, __VA_ARGS__) KERNEL(name, 2, __VA_ARGS__)
#define BROKEN_3(name, ...) BROKEN_2(name, __VA_ARGS__) KERNEL(name, 3, __VA_ARGS__)
#define BROKEN_4(name, ...) BROKEN_3(name, __VA_ARGS__) KERNEL(name, 4, __VA_ARGS__)

BROKEN_2(sum_in_tree, const float*, float*)
BROKEN_4(sum_by_ticket, const float*, float*, int*, float*)
BROKEN_4(sum_by_ordered_ticket, const float*, float*, int*, float*)
BROKEN_2(rotate_in_warp, const float*, float*)
BROKEN_1(rotate_in_half_warp, const float*, float*)
BROKEN_1(sum_by_shuffles, const float*, float*)
BROKEN_2(shift_with_two_stages, const float*, float*)
BROKEN_2(count_in_shared_memory, const int*, int*)
BROKEN_2(count_in_global_memory, const int*, int*)
BROKEN_2(write_short_elements, __half*, unsigned char*)
BROKEN_1(reverse_in_place, float*)
BROKEN_3(exchange_over_grid, float*, int*, float*)
BROKEN_2(pass_a_message, float*, int*, float*)
