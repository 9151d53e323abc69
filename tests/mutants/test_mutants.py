"""The harness itself, on a project of two files, and whether the catalogue is up to date."""

import shutil
from dataclasses import replace

import pytest

from tests.mutants import runner
from tests.mutants.catalogue import MUTANTS
from tests.mutants.mutant import Mutant, StaleError

WRONG_SUM = Mutant("wrong-sum", "adds up wrongly", "sums.py", "a + b", "a - b", ("test_sums.py",))


@pytest.fixture
def project(tmp_path):
    (tmp_path / "sums.py").write_text("def add(a, b):\n    return a + b  # and no more\n")
    (tmp_path / "test_sums.py").write_text(
        "from sums import add\n\ndef test_add():\n    assert add(2, 3) == 5\n"
    )
    return tmp_path


def test_a_bug_that_a_test_notices_is_caught(project):
    outcome = runner.plant(WRONG_SUM, project)
    assert (outcome.kind, outcome.is_fine) == ("caught", True)
    assert "1 failed" in outcome.details
    assert "a + b" in (project / "sums.py").read_text()  # it was planted in a copy


def test_a_bug_that_no_test_notices_survives(project):
    harmless = replace(WRONG_SUM, old="no more", new="no less")
    outcome = runner.plant(harmless, project)
    assert (outcome.kind, outcome.is_fine) == ("survived", False)
    assert runner.plant(replace(harmless, survives="a comment"), project).is_fine
    assert not runner.plant(replace(WRONG_SUM, survives="a comment"), project).is_fine


def test_a_bug_whose_source_has_changed_is_stale(project):
    outcome = runner.plant(replace(WRONG_SUM, old="a * b"), project)
    assert (outcome.kind, outcome.is_fine) == ("stale", False)
    assert "expected this once, found it 0 times: a * b" in outcome.details
    assert runner.plant(replace(WRONG_SUM, path="gone.py"), project).kind == "stale"


def test_a_bug_that_keeps_tests_from_running_does_not_count_as_caught(project):
    assert runner.plant(replace(WRONG_SUM, tests=("-k", "nothing")), project).kind == "broken"


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_catalogue_is_up_to_date(mutant, tmp_path):
    path = tmp_path / mutant.path
    path.parent.mkdir(parents=True)
    shutil.copy(runner.ROOT / mutant.path, path)
    try:
        mutant.apply(tmp_path)
    except StaleError as error:
        pytest.fail(str(error))
    for test in mutant.tests:
        if test.endswith(".py"):
            assert (runner.ROOT / test).exists()


def test_names_are_unique():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
