"""Entry point of ``python -m tests.fuzz``."""

from tests.fuzz.cli import main

main(prog_name="python -m tests.fuzz")
