"""Entry point of ``python -m benchmarks.optimizers``."""

from .cli import main

main(prog_name="python -m benchmarks.optimizers")
