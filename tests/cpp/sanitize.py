"""Runs the CPU kernels under sanitizers: ``make sanitize``, ``make sanitize-quick``.

Address and undefined behaviour: the C++ test of the driver with every instruction set of this
machine, then the whole extension in Python with tests/blocks and a batch of random calls. Threads:
the C++ test of the driver, whose threads are std::thread. torch's OpenMP runtime is not
instrumented, so that the thread sanitizer would not see how it orders its threads; the extension is
therefore not run under it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.support.cpp_build import machine_has
from tests.support.driver_build import LEVELS, Program, build_and_run
from tests.support.paths import ROOT

COMPILER = os.environ.get("CXX", "c++")
FOLDER = ROOT / "build" / "sanitize"
# Calls instead of inlined checks: the kernels compile in less than half the time.
ADDRESS = [
    *("-O1", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"),
    "--param=asan-instrumentation-with-call-threshold=0",
]
THREAD = ["-O1", "-g1", "-fsanitize=thread"]
# Sizes whose loops are expanded in the quick set and in the extension. Expanded and instrumented,
# each size is slow to compile; the C++ test of `make sanitize` has all of them.
FEWER_SIZES = 3
FUZZED_CALLS = 3000


def program(kind: str, level: str, flags: list[str], sizes: int | None = None) -> Program:
    fewer = [] if sizes is None else [f"-DMBF_MAX_EXPANDED={sizes}"]
    # The thread sanitizer of GCC 12 does not start where addresses are randomised in many bits.
    fixed = shutil.which("setarch") if kind == "thread" else None
    return Program(
        name=f"{kind}-{level}" + ("" if sizes is None else "-quick"),
        level=level,
        flags=[*flags, *fewer],
        isa_flags=LEVELS[level],
        compiler=COMPILER,
        link=[flag for flag in flags if flag.startswith("-fsanitize")],
        runner=[fixed, "-R"] if fixed else [],
        environment={"TSAN_OPTIONS": "halt_on_error=1", "UBSAN_OPTIONS": "print_stacktrace=1"},
    )


def quick() -> bool:
    widest = "avx2" if machine_has(LEVELS["avx2"]) else "baseline"
    return build_and_run(
        [
            program("address", widest, ADDRESS, FEWER_SIZES),
            program("thread", "baseline", THREAD, FEWER_SIZES),
        ]
    )


def full() -> bool:
    levels = [level for level, flags in LEVELS.items() if machine_has(flags)]
    left_out = sorted(set(LEVELS) - set(levels))
    if left_out:
        print(f"not on this machine: {', '.join(left_out)}")
    programs = [program("address", level, ADDRESS) for level in levels]
    programs += [program("thread", level, THREAD) for level in levels]
    return build_and_run(programs) and extension()


def extension() -> bool:
    """Builds the extension with the address sanitizer; runs tests/blocks and some fuzzing."""
    library = FOLDER / "library"
    build = {
        "MBF_EXTRA_FLAGS": " ".join([*ADDRESS, f"-DMBF_MAX_EXPANDED={FEWER_SIZES}"]),
        "MBF_BUILD_FOLDER": str(FOLDER / "objects"),
        "MBF_REQUIRE_EXTENSION": "1",
        "MBF_CUDA": "0",
    }
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--build-lib", str(library)]
    subprocess.run(command, cwd=ROOT, env=os.environ | build, check=True)
    _link_package(library / "mbf_kernels")
    # Python itself is not instrumented: the runtime has to be loaded before it. libstdc++ too,
    # because the runtime looks for the function that throws exceptions when it starts.
    preloaded = [_library("libasan.so"), _library("libubsan.so"), _library("libstdc++.so.6")]
    environment = {
        "LD_PRELOAD": " ".join(preloaded),
        # Python keeps much memory until its end. Tests ask for more memory than there is.
        "ASAN_OPTIONS": "detect_leaks=0,allocator_may_return_null=1,abort_on_error=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "PYTHONPATH": os.pathsep.join(map(str, (library, ROOT, ROOT / "python"))),
    }
    located = "import torch, mbf_kernels._C as c; print(c.__file__)"
    shown = subprocess.run(
        [sys.executable, "-c", located],
        cwd=library,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout.strip()
    if not Path(shown).is_relative_to(library):
        print(f"the tests would use {shown}, which has no sanitizer")
        return False
    # Run in the folder of the sanitized package, which is then imported instead of the sources.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command += ["--rootdir", str(ROOT), "-c", str(ROOT / "pyproject.toml")]
    command += ["-n", "auto", "--dist", "loadscope", "--import-mode=append"]
    command += [str(ROOT / "tests" / "blocks")]
    fuzz = [sys.executable, "-m", "tests.fuzz", "operators", "--calls", str(FUZZED_CALLS)]
    results = [
        subprocess.run(each, cwd=library, env=os.environ | environment, check=False)
        for each in (command, fuzz)
    ]
    return all(done.returncode == 0 for done in results)


def _link_package(folder: Path) -> None:
    """Puts the Python files of the package beside the sanitized extension."""
    for source in (ROOT / "mbf_kernels").iterdir():
        link = folder / source.name
        if source.suffix != ".so" and source.name != "__pycache__" and not link.exists():
            link.symlink_to(source)


def _library(name: str) -> str:
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer sizes, only C++")
    return 0 if (quick() if parser.parse_args().quick else full()) else 1


if __name__ == "__main__":
    sys.exit(main())
