"""Commands and whole suites of tests in processes of their own.

A suite is a file of tests that cannot share a process with the others. Triton decides when it is
imported whether it interprets or compiles, and for which architecture; ptxcpu decides when it
translates a kernel whether it records memory traffic.
"""

import ast
import os
import subprocess
import sys
import tempfile
import textwrap
import xml.etree.ElementTree as ET
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.paths import ROOT, TESTS
from tests.support.requirements import require

SHOWN = 4000  # characters of a child's output that a failure message shows


def run(command, folder=ROOT, **environment):
    """The finished process of ``command``, with its output as text.

    ``environment`` holds changes to the variables of this process; None removes one.
    """
    changed = os.environ | environment
    variables = {name: str(value) for name, value in changed.items() if value is not None}
    return subprocess.run(
        [str(word) for word in command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )


def output_of(command, folder=ROOT, **environment):
    """What a command prints that has to succeed."""
    done = run(command, folder, **environment)
    assert done.returncode == 0, describe(done)
    return done.stdout


def python(script, *arguments):
    """The command that runs a script given as text."""
    return [sys.executable, "-c", textwrap.dedent(script), *arguments]


def describe(done):
    """For a failure message: the command, how it ended and the end of what it printed."""
    return (
        f"exit code {done.returncode} of {' '.join(done.args)[:SHOWN]}\n"
        f"{done.stdout[-SHOWN:]}{done.stderr[-SHOWN:]}"
    )


@dataclass
class Outcome:
    """Of one test function of a suite, over all its parameters."""

    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)


class Suite:
    """A file of tests that runs in child processes; each of its functions is a case here.

    ``file`` is relative to tests/. Its functions are divided among ``parts`` processes, so that
    workers can share a long suite. ``needs`` are functions of :mod:`tests.support.requirements`.
    The child's tests may skip for the reason ``may_skip`` only: any other skip is a failure.
    Keywords are changes to the child's environment.
    """

    def __init__(self, file, *needs, parts=1, may_skip=None, **environment):
        self.file, self.needs, self.parts = file, needs, parts
        self.may_skip, self.environment = may_skip, environment
        self.names = _test_functions(TESTS / file)
        self._finished = {}  # part: (outcomes by function, output)

    def cases(self, label=""):
        """Parameters ``(suite, name)``, one per function; a worker takes all of a part."""
        words = [*Path(self.file).with_suffix("").parts, *([label] if label else [])]
        return [
            pytest.param(
                self,
                name,
                marks=pytest.mark.xdist_group("-".join([*words, str(self._part_of(name))])),
                id=f"{label}-{name}" if label else name,
            )
            for name in self.names
        ]

    def check(self, name):
        """Passes, fails or skips as the function did in the child."""
        require(*self.needs)
        part = self._part_of(name)
        if part not in self._finished:
            self._finished[part] = self._run([n for n in self.names if self._part_of(n) == part])
        outcomes, output = self._finished[part]
        assert name in outcomes, f"{name} did not run:\n{output[-SHOWN:]}"
        outcome = outcomes[name]
        unexpected = [reason for reason in outcome.skips if reason != self.may_skip]
        assert not outcome.failures + unexpected, "\n".join(outcome.failures + unexpected)
        if outcome.skips:
            pytest.skip(self.may_skip)

    def _part_of(self, name):
        return self.names.index(name) % self.parts

    def _run(self, names):
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
            command += ["-W", "ignore::RuntimeWarning", f"--junitxml={report}"]
            command += [f"{TESTS / self.file}::{name}" for name in names]
            done = run(command, **self.environment)
            outcomes = _outcomes(report) if report.exists() else {}
            return outcomes, done.stdout + done.stderr


def _test_functions(path):
    """Read without importing the file."""
    return [
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def _outcomes(report):
    outcomes = defaultdict(Outcome)
    for case in ET.parse(report).getroot().iter("testcase"):
        full_name = case.attrib["name"]
        outcome = outcomes[full_name.split("[")[0]]
        for problem in (*case.iter("failure"), *case.iter("error")):
            outcome.failures.append(f"{full_name}: {problem.text}")
        outcome.skips += [skip.attrib["message"] for skip in case.iter("skipped")]
    return dict(outcomes)
