"""Benchmarks of mbf_kernels and of what is built on it."""
