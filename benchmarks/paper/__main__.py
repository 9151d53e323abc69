"""Entry point of ``python -m benchmarks.paper``."""

from .cli import main

main(prog_name="python -m benchmarks.paper")
