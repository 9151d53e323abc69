"""Runs a suite of tests in a process of its own and tells how each of its tests went.

Whether Triton interprets or compiles, and for what, is settled when it is imported, and whether
ptxcpu records traffic when it translates: the process that runs the other tests stays as it is.
"""

import ast
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

TESTS = Path(__file__).parent


def names_in(suite):
    """The test functions of a suite, read without importing it."""
    tree = ast.parse((TESTS / suite).read_text())
    return [
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    ]


def run(suite, folder, **environment):
    """``(outcomes, output)``: test function to the words of its failures, '' where it passed."""
    report = folder / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-x"]
    command += ["-W", "ignore::RuntimeWarning", f"--junitxml={report}", str(TESTS / suite)]
    child = subprocess.run(
        command,
        cwd=TESTS.parent,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    output = child.stdout + child.stderr
    if not report.exists():
        return {}, output
    outcomes = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        name = case.attrib["name"].split("[")[0]
        problems = [*case.iter("failure"), *case.iter("error"), *case.iter("skipped")]
        outcomes[name] = outcomes.get(name, "") + "".join(
            f"{case.attrib['name']}: {problem.text}\n" for problem in problems
        )
    return outcomes, output
