"""``python -m benchmarks.numerics``."""

from .cli import main

main(prog_name="python -m benchmarks.numerics")
