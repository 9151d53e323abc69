"""Runs the C++ tests for instruction sets that this machine may lack: ``make foreign-isa``.

NEON: cross-compiled for aarch64, executed by qemu. AVX-512: its intrinsics replaced by those that
SIMDe makes of AVX2, executed natively. Needs no Python packages.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.driver_build import AVX2, FLAGS, Program, build_and_run
from tests.support.paths import ROOT, TESTS

ARM_COMPILER = "aarch64-linux-gnu-g++"
SIMDE = "/usr/include/simde/x86/avx512.h"
PACKAGES = {
    ARM_COMPILER: "g++-aarch64-linux-gnu",
    "qemu-aarch64": "qemu-user",
    SIMDE: "libsimde-dev",
}
# The loops of small sizes are expanded as in a release, but fewer of them.
FEWER = ["-O1", "-DMBF_MAX_EXPANDED=4"]
EMULATED = ["-include", str(TESTS / "cpp" / "simde_avx512.h"), "-Wno-psabi"]


def missing() -> list[str]:
    """The Debian packages of what is not installed."""
    return [p for need, p in PACKAGES.items() if not (Path(need).exists() or shutil.which(need))]


def programs() -> list[Program]:
    return [
        Program(
            name="neon",
            level="baseline",
            flags=FEWER,
            compiler=ARM_COMPILER,
            link=["-static"],
            runner=["qemu-aarch64"],
        ),
        Program(name="avx512-simde", level="avx512", flags=FEWER, isa_flags=[*AVX2, *EMULATED]),
    ]


def header_tests() -> bool:
    """The tests of lanes and formats, each one file. Their lanes depend on the instruction set."""
    passed = True
    folder = ROOT / "build" / "driver-tests" / "headers"
    folder.mkdir(parents=True, exist_ok=True)
    targets = {
        "neon": ([ARM_COMPILER, "-static"], ["qemu-aarch64"]),
        "avx512-simde": (["c++", *AVX2, *EMULATED], []),
    }
    for target, (compiler, runner) in targets.items():
        for test in ("test_lanes", "test_element_formats"):
            binary = folder / f"{test}-{target}"
            source = TESTS / "cpp" / f"{test}.cpp"
            subprocess.run([*compiler, *FLAGS, "-O1", str(source), "-o", str(binary)], check=True)
            done = subprocess.run([*runner, str(binary)], stdout=subprocess.PIPE, text=True)
            print(f"{target} {test}: {done.stdout.strip()}", flush=True)
            passed = passed and done.returncode == 0
    return passed


def no_avx512_instructions(program: Program) -> bool:
    """Whether the emulation is one: its code names no 512-bit register."""
    listed = subprocess.run(
        ["objdump", "-d", str(program.binary)], stdout=subprocess.PIPE, text=True, check=True
    )
    found = "%zmm" in listed.stdout
    if found:
        print(f"{program.name}: the compiler used AVX-512 instructions")
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--missing", action="store_true", help="print the missing packages")
    if parser.parse_args().missing:
        print(*missing())
        return 0
    if missing():
        print(f"foreign-isa: not installed: {', '.join(missing())} (Debian's packages)")
        return 1
    neon, avx512 = programs()
    passed = header_tests()
    passed = build_and_run([neon, avx512]) and passed
    return 0 if no_avx512_instructions(avx512) and passed else 1


if __name__ == "__main__":
    sys.exit(main())
