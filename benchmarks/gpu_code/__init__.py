"""The machine code of the GPU kernels: registers, spills, instructions. No GPU is needed."""
