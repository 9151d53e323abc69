"""What compiled GPU kernels look like: registers, spills, instructions; no GPU needed."""
