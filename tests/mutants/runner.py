"""Plants bugs in copies of the project and runs tests there."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .mutant import Mutant, StaleError

ROOT = Path(__file__).parents[2]
LEFT_OUT = shutil.ignore_patterns(".git", ".venv*", "build", "dist", "*.egg-info", "__pycache__",
                                  ".*_cache", "benchmark_results")  # fmt: skip
NO_FAILURE, SOME_FAILED = 0, 1  # exit codes of pytest; all others mean that it could not run
LONGEST = 1800.0  # seconds; a planted bug may hang
SHOWN_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """What became of a planted bug.

    Attributes:
        kind: ``caught``, ``survived``, ``stale``, or ``broken`` where no test ran at all.
        details: the end of what pytest printed.
    """

    mutant: Mutant
    kind: str
    seconds: float
    details: str = ""

    @property
    def is_fine(self) -> bool:
        """Whether it was caught, or is known to survive."""
        return self.kind == ("survived" if self.mutant.survives else "caught")


@contextmanager
def copy_of(root: Path) -> Iterator[Path]:
    """A copy of the project with its compiled extension, which is used in place.

    Always in the same folder: compiled Triton kernels have the paths of their sources.
    """
    copy = root / "build" / "mutant"
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(root, copy, ignore=LEFT_OUT, symlinks=True)
        yield copy
    finally:
        shutil.rmtree(copy, ignore_errors=True)


def run_tests(root: Path, tests: tuple[str, ...]) -> tuple[int, str]:
    """The exit code of pytest and what it printed."""
    folders = os.pathsep.join(map(str, (root, root / "python")))
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-n0", "-p", "no:cacheprovider", *tests]
    try:
        done = subprocess.run(
            command,
            cwd=root,
            env={**os.environ, "PYTHONPATH": folders, "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired:
        return SOME_FAILED, f"the tests ran for {LONGEST:g} s without an end"
    return done.returncode, done.stdout + done.stderr


def plant(mutant: Mutant, root: Path = ROOT) -> Outcome:
    """Plants one bug and runs its tests."""
    began = time.perf_counter()

    def outcome(kind: str, text: str = "") -> Outcome:
        details = "\n".join(text.splitlines()[-SHOWN_LINES:])
        return Outcome(mutant, kind, time.perf_counter() - began, details)

    with copy_of(root) as copy:
        try:
            mutant.apply(copy)
        except (StaleError, OSError) as error:
            return outcome("stale", str(error))
        code, text = run_tests(copy, mutant.tests)
    kinds = {NO_FAILURE: "survived", SOME_FAILED: "caught"}
    return outcome(kinds.get(code, "broken"), text)
