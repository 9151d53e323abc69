"""Entry point of ``python -m benchmarks.training``."""

from .cli import main

main(prog_name="python -m benchmarks.training")
