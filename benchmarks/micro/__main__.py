"""Entry point of ``python -m benchmarks.micro``."""

from .cli import main

main(prog_name="python -m benchmarks.micro")
