"""``python -m benchmarks.gpu_code``: the machine code of the GPU kernels."""

from .cli import main

main()
