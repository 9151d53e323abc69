"""Runs one compiled wheel under several releases of torch and numpy; prints a table.

``make matrix`` runs this. The wheel is built once, with the torch of requirements-dev.txt and
without CUDA kernels. The same file is then installed beside each release of torch in a fresh
environment, which is deleted afterwards. A row with another Python builds a wheel of its own, with
the torch of the row. Releases of torch that come with CUDA take some 6 GB each while they are
tried. A row that cannot be installed shows the reason.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from .environment import (
    BUILD_PACKAGES,
    ROOT,
    TEST_PACKAGES,
    Environment,
    InstallError,
    find_python,
    pinned,
)
from .installed import BrokenInstallationError, Description, Tests, describe, run_tests

NEWEST = "newest"
PYTHON = "3.11"  # builds the wheel and is tried with all releases of torch
OTHER_PYTHONS = ("3.10", "3.12", "3.13", "3.14")
TORCHES = ("2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1", NEWEST)
NUMPY_1 = "1.26.4"
TESTS = ("tests/blocks", "tests/optimizer")
TITLES = ("Python", "torch", "numpy", "passed", "failed", "skipped", "remark")


@dataclass(frozen=True)
class Row:
    """A combination to try; a version is exact or "newest"."""

    python: str
    torch: str
    numpy: str

    @staticmethod
    def of(text: str) -> Row:
        """Reads ``python:torch:numpy``; what is left out is the newest release."""
        words = text.split(":")
        if not words[0] or len(words) > 3:
            message = f"expected python:torch:numpy such as 3.11:2.10.0:newest, got {text!r}"
            raise argparse.ArgumentTypeError(message)
        words += [NEWEST] * (3 - len(words))
        return Row(*(word or NEWEST for word in words))


@dataclass(frozen=True)
class Outcome:
    """What became of a row: the counts of the tests, or the reason why there are none."""

    row: Row
    found: Description | None = None
    tests: Tests | None = None
    remark: str = ""

    @property
    def good(self) -> bool:
        return self.tests is not None and self.tests.failed == 0 and self.tests.passed > 0

    @property
    def cells(self) -> list[str]:
        row, found, tests = self.row, self.found, self.tests
        versions = (found.python, found.torch, found.numpy) if found else vars(row).values()
        counts = (tests.passed, tests.failed, tests.skipped) if tests else ("", "", "")
        return [*versions, *(str(count) for count in counts), self.remark]


def requirement(name: str, version: str) -> str:
    return name if version == NEWEST else f"{name}=={version}"


def default_rows() -> list[Row]:
    rows = [Row(PYTHON, torch, NEWEST) for torch in TORCHES]
    rows += [Row(PYTHON, torch, NUMPY_1) for torch in ("2.10.0", "2.13.0")]
    rows += [Row(python, NEWEST, NEWEST) for python in OTHER_PYTHONS if find_python(python)]
    return sorted(rows, key=lambda row: (row.python != PYTHON, row.python, row.torch))


def build_wheel(folder: Path) -> Path:
    """The wheel, built with the torch of requirements-dev.txt."""
    interpreter = find_python(PYTHON)
    if interpreter is None:
        raise InstallError(f"no Python {PYTHON} found to build the wheel with")
    builder = Environment(folder / "builder", interpreter)
    builder.install(*pinned("torch", *BUILD_PACKAGES))
    wheel = builder.build_wheel(folder / "wheel")
    builder.remove()
    return wheel


def prepare(environment: Environment, python: str, torch: str, wheel: Path) -> None:
    """Installs torch, the wheel and what the tests need."""
    # Not the pinned test packages: they may not exist for this Python.
    environment.install(requirement("torch", torch), *TEST_PACKAGES)
    if python != PYTHON:  # a pybind11 module is for one Python
        environment.install(*BUILD_PACKAGES)
        wheel = environment.build_wheel(environment.folder / "wheel")
    # Without dependencies, so that a torch below the lower bound can be tried as well.
    environment.install("--no-deps", "--no-index", str(wheel))


def try_row(row: Row, environment: Environment, options: argparse.Namespace) -> Outcome:
    """Installs the row's numpy and runs the tests."""
    found = None
    try:
        environment.install(requirement("numpy", row.numpy))
        found = describe(environment)
        found.require(environment.folder)
        tests, output = run_tests(environment, options.tests, options.workers)
    except (InstallError, BrokenInstallationError) as error:
        return failed(row, error, options, found)
    (options.logs / f"{_slug(row)}.txt").write_text(output)
    remark = f"first failure: {tests.failures[0]}" if tests.failures else ""
    return Outcome(row, found, tests, remark)


def failed(
    row: Row, error: Exception, options: argparse.Namespace, found: Description | None = None
) -> Outcome:
    """The outcome of a row whose tests could not run; all that is known goes to the logs."""
    (options.logs / f"{_slug(row)}.txt").write_text(f"{error}\n{error.__cause__ or ''}\n")
    return Outcome(row, found, remark=str(error).splitlines()[0])


def _slug(row: Row) -> str:
    return f"python-{row.python}-torch-{row.torch}-numpy-{row.numpy}"


def table(outcomes: list[Outcome]) -> str:
    """The outcomes as a table in Markdown."""
    lines = [list(TITLES), ["---"] * len(TITLES), *(outcome.cells for outcome in outcomes)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def run(rows: list[Row], wheel: Path, folder: Path, options: argparse.Namespace) -> list[Outcome]:
    """Tries the rows in order; neighbours that differ in numpy alone share an environment."""
    outcomes = []
    for (python, torch), group in groupby(rows, key=lambda row: (row.python, row.torch)):
        start = time.monotonic()
        together = list(group)
        interpreter = find_python(python)
        try:
            if interpreter is None:
                raise InstallError(f"no Python {python} found")
            environment = Environment(folder / f"python-{python}-torch-{torch}", interpreter)
            prepare(environment, python, torch, wheel)
            done = [try_row(row, environment, options) for row in together]
        except InstallError as error:
            done = [failed(row, error, options) for row in together]
        shutil.rmtree(folder / f"python-{python}-torch-{torch}", ignore_errors=True)
        outcomes += done
        for outcome in done:
            print(" ".join(outcome.cells), flush=True)
        print(f"  ({time.monotonic() - start:.0f} s)", flush=True)
    return outcomes


def main() -> int:
    """Tries all rows and prints the table; returns 0 if every row's tests passed."""
    program = "python -m benchmarks.environments.matrix"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument(
        "--row",
        action="append",
        type=Row.of,
        metavar="PYTHON:TORCH:NUMPY",
        help="a combination to try, such as 3.11:2.10.0:1.26.4 or 3.12:newest; may be repeated "
        f"(default: {', '.join(TORCHES)} with Python {PYTHON}, numpy {NUMPY_1} with two of them, "
        "and the newest torch with every other Python from 3.10 on that is found)",
    )
    parser.add_argument("--wheel", type=Path, help="a wheel to use instead of building one")
    parser.add_argument("--tests", nargs="+", default=list(TESTS), help="(default: %(default)s)")
    parser.add_argument("--workers", default="auto", help="processes of pytest (default: auto)")
    logs = ROOT / "build" / "matrix"
    parser.add_argument("--logs", type=Path, default=logs, help="where the tests' output goes")
    parser.add_argument("--scratch", type=Path, help="where environments are made (default: /tmp)")
    options = parser.parse_args()
    options.logs.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mbf-matrix-", dir=options.scratch) as name:
        folder = Path(name).resolve()
        free = shutil.disk_usage(folder).free >> 30
        print(f"{free} GB free in {folder.parent}", flush=True)
        wheel = options.wheel.resolve() if options.wheel else build_wheel(folder)
        print(f"trying {wheel.name}", flush=True)
        outcomes = run(options.row or default_rows(), wheel, folder, options)
    print(table(outcomes))
    return int(not all(outcome.good for outcome in outcomes))


if __name__ == "__main__":
    sys.exit(main())
