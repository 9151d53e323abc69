"""The CUDA backend: kernels executed on the CPU, host logic, build."""
