"""Entry point of ``python -m benchmarks.gpu_code``."""

from .cli import main

main()
