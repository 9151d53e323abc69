"""How trials in fresh environments read requirements, pip's output and pytest's reports."""

import argparse
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.paths import ROOT

if not (ROOT / "benchmarks" / "environments").exists():
    pytest.skip("not a source tree", allow_module_level=True)

from benchmarks.environments import environment, installed, matrix


def test_pinned_requirements_are_those_of_the_file():
    lines = (ROOT / "requirements-dev.txt").read_text().splitlines()
    (torch,) = environment.pinned("torch")
    assert re.fullmatch(r"torch==[\d.]+", torch)
    assert torch in lines
    everything = (*environment.BUILD_PACKAGES, *environment.TEST_PACKAGES)
    assert set(environment.pinned(*everything)) <= set(lines)
    with pytest.raises(ValueError, match=r"does not pin no-such-package$"):
        environment.pinned("torch", "no-such-package")


def test_the_build_does_not_pin_torch():
    """A user's build must take the torch that is there, from the oldest that the ABI allows."""
    required = re.search(r"^requires = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M)[1]
    (torch,) = re.findall(r'"(torch[^"]*)"', required)
    target = re.search(r"TARGET_TORCH = \((\d+), (\d+)\)", (ROOT / "setup.py").read_text())
    assert torch == f"torch>={target[1]}.{target[2]}"
    dependencies = re.search(
        r"^dependencies = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.M
    )
    assert f'"{torch}"' in dependencies[1]


def test_an_interpreter_has_the_version_that_was_asked_for():
    running = f"{sys.version_info.major}.{sys.version_info.minor}"
    assert environment.find_python(running) == sys.executable
    assert environment.find_python("2.999") is None
    for minor in range(10, 15):
        found = environment.find_python(f"3.{minor}")
        if found:
            shown = subprocess.run([found, "--version"], capture_output=True, text=True).stdout
            assert shown.startswith(f"Python 3.{minor}.")


def test_an_interpreter_of_another_version_is_not_taken(tmp_path, monkeypatch):
    """pyenv has a program python3.x even where no such version is selected."""
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho 'pyenv: python3.99: command not found' >&2; exit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path))
    assert environment.find_python("3.99") is None
    good = tmp_path / "versions" / "3.99.1" / "bin" / "python"
    good.parent.mkdir(parents=True)
    good.write_text("#!/bin/sh\necho 3.99\n")
    good.chmod(0o755)
    assert environment.find_python("3.99") == str(good)


def test_variables_lead_to_no_other_copy_of_the_package(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setenv("MBF_BACKEND", "torch")
    monkeypatch.setenv("KEPT", "yes")
    variables = environment.clean_variables({"MBF_CUDA": "0"})
    assert "PYTHONPATH" not in variables
    assert "MBF_BACKEND" not in variables
    assert (variables["KEPT"], variables["MBF_CUDA"]) == ("yes", "0")


def test_the_reason_of_pip_has_no_address():
    output = (
        "Looking in indexes: https://example.org/simple\n"
        "ERROR: Could not find a version at https://user:secret@example.org/simple (from a, b)\n"
        "ERROR: No matching distribution found for torch==0.1\n"
    )
    assert environment.pip_reason(output) == "Could not find a version at (address) (from a, b)"
    assert environment.pip_reason("Killed\n") == "Killed"
    assert environment.pip_reason("") == "pip said nothing"


def test_a_failed_installation_raises_with_the_reason(tmp_path):
    fresh = environment.Environment(tmp_path / "fresh")
    with pytest.raises(environment.InstallError, match=r"Invalid requirement"):
        fresh.install("--no-index", "not a requirement")
    with pytest.raises(FileExistsError, match=r"does not exist yet"):
        environment.Environment(tmp_path / "fresh")
    assert fresh.output_of("-c", "import sys; print(sys.prefix)").strip() == str(fresh.folder)
    with pytest.raises(installed.BrokenInstallationError, match=r"No module named 'torch'"):
        installed.describe(fresh)


REPORT = """<testsuites><testsuite>
<testcase classname="a" name="passes"/>
<testcase classname="a" name="fails"><failure message="x"/></testcase>
<testcase classname="a" name="breaks"><error message="x"/></testcase>
<testcase classname="a" name="skips"><skipped message="x"/></testcase>
</testsuite></testsuites>"""


def test_a_report_is_counted(tmp_path):
    (tmp_path / "report.xml").write_text(REPORT)
    tests = installed.Tests.of_report(tmp_path / "report.xml")
    assert tests == installed.Tests(1, 2, 1, ("a::fails", "a::breaks"))


def description(**changes):
    good = {
        "python": "3.12.1",
        "torch": "2.10.0",
        "numpy": "2.0.0",
        "built_with": "2.13.0",
        "isa": "avx2",
        "why_missing": "",
        "files": ["/env/lib/a.py", "/env/lib/_C.abi3.so"],
        "operators": ["mbf_kernels::spd_inverse"],
    }
    return installed.Description(**(good | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"why_missing": "no compiler"}, "no compiled extension: no compiler"),
        ({"files": ["/env/a.py", "/tree/_C.abi3.so"]}, r"expected files in /env, got /tree/_C"),
        ({"operators": []}, r"served by its operator, got \[\]"),
    ],
)
def test_an_installation_without_its_extension_is_refused(changes, message):
    description().require(Path("/env"))
    with pytest.raises(installed.BrokenInstallationError, match=message):
        description(**changes).require(Path("/env"))


def test_rows_are_read():
    assert matrix.Row.of("3.11:2.10.0:1.26.4") == matrix.Row("3.11", "2.10.0", "1.26.4")
    assert matrix.Row.of("3.12") == matrix.Row("3.12", "newest", "newest")
    assert matrix.Row.of("3.12::2.0.0") == matrix.Row("3.12", "newest", "2.0.0")
    for text in ("", ":2.10.0", "3.11:2.10.0:2.0:more"):
        with pytest.raises(argparse.ArgumentTypeError, match=r"expected python:torch:numpy"):
            matrix.Row.of(text)


def test_outcomes_become_a_table():
    row = matrix.Row("3.12", "newest", "newest")
    good = matrix.Outcome(row, description(), installed.Tests(7, 0, 1))
    bad = matrix.Outcome(row, description(), installed.Tests(7, 1, 1, ("a::b",)), "first: a::b")
    none = matrix.Outcome(row, remark="No matching distribution")
    assert [outcome.good for outcome in (good, bad, none)] == [True, False, False]
    assert matrix.table([good, none]).splitlines()[2:] == [
        "| 3.12.1 | 2.10.0 | 2.0.0 | 7 | 0 | 1 |  |",
        "| 3.12 | newest | newest |  |  |  | No matching distribution |",
    ]


def test_default_rows_have_both_ends_and_neighbours_share_environments():
    rows = matrix.default_rows()
    assert {"2.10.0", "newest"} <= {row.torch for row in rows if row.python == matrix.PYTHON}
    pairs = [(row.python, row.torch) for row in rows]
    changes = sum(a != b for a, b in pairwise(pairs))
    assert changes + 1 == len(set(pairs)) < len(pairs)
