"""The Triton kernels, interpreted and compiled."""
