"""The CUDA backend: its kernels, executed on the CPU, its host logic and its build."""
