"""What the GPU kernels compile to, looked at without a GPU."""
