"""Runs commands and whole suites of tests in child processes.

A suite is a file of tests that cannot share a process with the others. Triton decides when it is
imported whether it interprets or compiles, and its driver for which architecture.
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
from functools import cached_property
from pathlib import Path

import pytest

from tests.support.paths import ROOT, TESTS
from tests.support.requirements import require

SHOWN = 4000  # characters of a child's output that a failure message shows


def run(command, folder=ROOT, **environment):
    """Runs ``command`` and returns the finished process, with its output as text.

    ``environment`` holds changes to the environment variables; None removes a variable.
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
    """The standard output of a command, which has to succeed."""
    done = run(command, folder, **environment)
    assert done.returncode == 0, describe(done)
    return done.stdout


def python(script, *arguments):
    """The command that runs a script given as text."""
    return [sys.executable, "-c", textwrap.dedent(script), *arguments]


def describe(done):
    """A failure message: the command, its exit code and the end of its output."""
    return (
        f"exit code {done.returncode} of {' '.join(done.args)[:SHOWN]}\n"
        f"{done.stdout[-SHOWN:]}{done.stderr[-SHOWN:]}"
    )


@dataclass
class Outcome:
    """The outcome of one test function of a suite, over all its parameters."""

    failures: list[str] = field(default_factory=list)
    skips: list[str] = field(default_factory=list)


class Suite:
    """A file of tests that runs in a child process; each of its functions is a case of the parent.

    ``file`` is relative to tests/. ``needs`` are functions of :mod:`tests.support.requirements`.
    ``share=(i, n)`` takes every n-th function, so that several workers can divide a long suite.
    ``may_skip`` is the only reason for which a test of the child may skip; others are failures.
    Other keywords are changes to the child's environment.
    """

    def __init__(self, file, *needs, share=(0, 1), may_skip=None, **environment):
        first, step = share
        self.names = _test_functions(TESTS / file)[first::step]
        self.file, self.needs = file, needs
        self.may_skip, self.environment = may_skip, environment

    def test_class(self):
        """A test class with a case for each function. One worker runs the whole class."""
        suite = self

        class Cases:
            @pytest.mark.parametrize("name", suite.names)
            def test(self, name):
                suite.check(name)

        return Cases

    def check(self, name):
        """Passes, fails or skips as the function did in the child."""
        require(*self.needs)
        outcomes, output = self._finished
        if name not in outcomes:
            pytest.fail(f"{name} did not run:\n{output[-SHOWN:]}", pytrace=False)
        outcome = outcomes[name]
        skips = [f"skipped: {reason}" for reason in outcome.skips if reason != self.may_skip]
        if outcome.failures or skips:
            pytest.fail("\n".join(outcome.failures + skips), pytrace=False)
        if outcome.skips:
            pytest.skip(self.may_skip)

    @cached_property
    def _finished(self):
        """``(outcomes by function, output)`` of the child, which runs at the first use."""
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.xml"
            command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
            command += ["-W", "ignore::RuntimeWarning", f"--junitxml={report}"]
            command += [f"{TESTS / self.file}::{name}" for name in self.names]
            done = run(command, **self.environment)
            outcomes = _outcomes(report) if report.exists() else {}
            return outcomes, done.stdout + done.stderr


def _test_functions(path):
    """The names of the test functions in a file, found without importing it."""
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
