"""A model of the CUDA runtime, below which the host code of the GPU backends runs without a GPU.

What a GPU does asynchronously is queued, and executed when something waits for it or when a seeded
scheduler chooses. Every operation knows what happened before it, so that a mistake in the order of
host and device is an error however the scheduler has chosen.

``order``          operations, and what happened before what
``memory``         allocations, and the accesses to them that are errors
``runtime``        devices, streams, events, the scheduler; ``graphs``: capture and replay
``allocators``     device memory and pinned memory, reused as torch's allocators do
``device_tensors`` tensors on a device of the model: every torch operation on them is queued
``torch_cuda``     the functions of ``torch.cuda`` for such tensors
``triton_launch``  Triton's launches, executed late as PTX (tests/ptx)
``cpp_launch``     csrc/cuda/launch.cu, compiled by g++ against ``fake/cuda_runtime.h``
``scene``          schedules and fixtures of the suites
"""
