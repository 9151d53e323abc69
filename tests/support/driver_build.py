"""Builds and runs the C++ test of the CPU driver for one instruction set. Needs no packages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.paths import CSRC, ROOT, TESTS

FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-ffp-contract=fast", "-fno-math-errno", "-pthread"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [*AVX2, *("-mavx512f", "-mavx512dq", "-mavx512bw", "-mavx512vl")]
LEVELS = {"baseline": [], "avx2": AVX2, "avx2_wide": AVX2, "avx512": AVX512}


@dataclass(frozen=True)
class Program:
    """tests/cpp/test_driver.cpp with the kernels of one instruction set.

    ``flags`` are for the kernels and the driver, the code under test. The test itself is compiled
    without them, because what it does takes far longer than the kernels.
    """

    name: str
    level: str
    flags: list[str]
    isa_flags: list[str] = field(default_factory=list)
    compiler: str = "c++"
    link: list[str] = field(default_factory=list)
    runner: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        return ROOT / "build" / "driver-tests" / self.name

    @property
    def binary(self) -> Path:
        return self.folder / "test_driver"

    def commands(self) -> list[list[str]]:
        """The compilations, the slowest first."""
        units = [
            (CSRC / "cpu" / f"isa_{self.level}.cpp", [*self.flags, *self.isa_flags]),
            (TESTS / "cpp" / "test_driver.cpp", ["-O2"]),
            (TESTS / "cpp" / "test_shared_driver.cpp", ["-O2"]),
            (CSRC / "cpu" / f"shared_{self.level}.cpp", [*self.flags, *self.isa_flags]),
            (CSRC / "cpu" / "driver.cpp", self.flags),
            (CSRC / "cpu" / "shared_driver.cpp", self.flags),
            (TESTS / "cpp" / "one_level.cpp", [*self.flags, f"-DMBF_LEVEL={self.level}"]),
        ]
        return [
            [self.compiler, *FLAGS, *flags, "-c", str(source), "-o", str(self._object(source))]
            for source, flags in units
        ]

    def link_command(self) -> list[str]:
        objects = sorted(str(path) for path in self.folder.glob("*.o"))
        return [self.compiler, *self.link, "-pthread", *objects, "-o", str(self.binary)]

    def run(self) -> bool:
        """Runs the program and shows what it says; True if it found nothing."""
        started = time.monotonic()
        done = subprocess.run(
            [*self.runner, str(self.binary)],
            env=os.environ | self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        passed = done.returncode == 0 and " 0 failures" in done.stdout
        shown = done.stdout.strip()[: None if passed else 6000]
        print(f"{self.name}: {shown} ({time.monotonic() - started:.0f} s)", flush=True)
        if not passed:
            print(f"{self.name}: exit code {done.returncode}", flush=True)
        return passed

    def _object(self, source: Path) -> Path:
        return self.folder / f"{source.stem}.o"


def build(programs: list[Program]) -> None:
    """Compiles all programs, as many files at a time as there are cores."""
    started = time.monotonic()
    commands = []
    for program in programs:
        shutil.rmtree(program.folder, ignore_errors=True)
        program.folder.mkdir(parents=True)
        commands.append(program.commands())
    # All first commands, then all second ones: the slowest files first.
    compilations = [command for row in zip(*commands, strict=True) for command in row]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(_checked, compilations))
        list(pool.map(_checked, [program.link_command() for program in programs]))
    print(f"built {len(programs)} programs in {time.monotonic() - started:.0f} s", flush=True)


def build_and_run(programs: list[Program]) -> bool:
    """True if no program found anything. All of them run, also after one that did."""
    build(programs)
    results = [program.run() for program in programs]
    return all(results)


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-4000:]}")
