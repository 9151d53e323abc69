"""The operations on blocks, on every backend and instruction set."""
