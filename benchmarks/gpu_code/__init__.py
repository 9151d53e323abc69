"""What the compiled GPU kernels look like: registers, spills, instructions, bytes; no GPU needed."""
