"""Checks a package that is installed in an environment, from a folder without its sources."""

from __future__ import annotations

import json
import shutil
import tempfile
import xml.etree.ElementTree as ET
from dataclasses import dataclass
from pathlib import Path

from .environment import ROOT, Environment

# Prints what is installed as one line of JSON. The profiler tells which operator served the call.
DESCRIBE = """
import json, sys
import torch, mbf_kernels as mk, mbf_optim
from torch.profiler import ProfilerActivity, profile

try:
    import numpy
    numpy_version = numpy.__version__
except ImportError:
    numpy_version = "none"
with profile(activities=[ProfilerActivity.CPU]) as seen:
    inverse, failed = mk.spd_inverse(4 * torch.eye(9).expand(33, 9, 9))
assert torch.equal(inverse, 0.25 * torch.eye(9).expand(33, 9, 9)) and not failed.any()
info = mk.build_info()
module = sys.modules.get("mbf_kernels._C")
print(json.dumps({
    "python": "%d.%d.%d" % sys.version_info[:3],
    "torch": torch.__version__,
    "numpy": numpy_version,
    "built_with": info.built_with_torch,
    "isa": info.current_isa,
    "why_missing": info.why_missing,
    "files": [mk.__file__, mbf_optim.__file__, *([module.__file__] if info.extension else [])],
    "operators": sorted({e.key for e in seen.key_averages() if e.key.startswith("mbf_kernels::")}),
}))
"""


class BrokenInstallationError(RuntimeError):
    """What is installed is not what was asked for."""


@dataclass(frozen=True)
class Description:
    """What an environment has, and which compiled operators served a call there."""

    python: str
    torch: str
    numpy: str
    built_with: str | None
    isa: str | None
    why_missing: str
    files: list[str]
    operators: list[str]

    def require(self, folder: Path) -> None:
        """Raises unless all comes from ``folder`` and the compiled extension served the call."""
        if self.why_missing:
            raise BrokenInstallationError(f"no compiled extension: {self.why_missing}")
        outside = [name for name in self.files if not Path(name).is_relative_to(folder)]
        if outside:
            raise BrokenInstallationError(f"expected files in {folder}, got {', '.join(outside)}")
        if self.operators != ["mbf_kernels::spd_inverse"]:
            raise BrokenInstallationError(
                f"expected spd_inverse to be served by its operator, got {self.operators}"
            )


def describe(environment: Environment) -> Description:
    """Imports the package in the environment, inverts matrices and says what served the call."""
    done = environment.run("-W", "ignore", "-c", DESCRIBE)
    if done.returncode != 0:
        last = (done.stdout.strip().splitlines() or ["no output"])[-1]
        raise BrokenInstallationError(last) from RuntimeError(done.stdout[-4000:])
    return Description(**json.loads(done.stdout.splitlines()[-1]))


@dataclass(frozen=True)
class Tests:
    """How many tests passed, failed and were skipped, and the names of those that failed."""

    passed: int
    failed: int
    skipped: int
    failures: tuple[str, ...] = ()

    @staticmethod
    def of_report(report: Path) -> Tests:
        """Reads the report in JUnit's format that pytest wrote."""
        passed = skipped = 0
        failures = []
        for case in ET.parse(report).getroot().iter("testcase"):
            if case.find("failure") is not None or case.find("error") is not None:
                failures.append(f"{case.get('classname')}::{case.get('name')}")
            elif case.find("skipped") is not None:
                skipped += 1
            else:
                passed += 1
        return Tests(passed, len(failures), skipped, tuple(failures))


def run_tests(environment: Environment, tests: list[str], workers: str) -> tuple[Tests, str]:
    """Runs tests of this source tree against what is installed; returns the counts and the output.

    Only the tests are copied, with the settings of pytest, so that nothing else can be imported.
    """
    with tempfile.TemporaryDirectory(prefix="mbf-tests-") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "tests", folder / "tests")
        shutil.copy(ROOT / "pyproject.toml", folder)
        report = folder / "report.xml"
        command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command += ["-n", workers, "--dist", "loadscope", *tests]
        done = environment.run(*command, folder=folder)
        if not report.exists():
            raise BrokenInstallationError(f"pytest did not run:\n{done.stdout[-4000:]}")
        return Tests.of_report(report), done.stdout
