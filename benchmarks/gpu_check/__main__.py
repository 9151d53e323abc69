"""``python -m benchmarks.gpu_check``."""

from .cli import main

main()
