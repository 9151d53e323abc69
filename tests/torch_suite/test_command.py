"""The command behind ``make torch-tests``, with short files of our own in place of torch's."""

import sys

import pytest
import torch
from torch.testing._internal import common_optimizers as registry

from mbf_optim import MBF
from tests.support import child_process

pytestmark = pytest.mark.slow

# In place of torch's files: one test per optimizer of the registry, and one of a scheduler.
OPTIMIZER_TESTS = """
from torch.testing._internal.common_device_type import instantiate_device_type_tests
from torch.testing._internal.common_optimizers import optim_db, optims
from torch.testing._internal.common_utils import TestCase

class TestNames(TestCase):
    @optims(optim_db)
    def test_name(self, device, dtype, optim_info):
        self.assertEqual(optim_info.name, "{expected}")

instantiate_device_type_tests(TestNames, globals(), only_for="cpu")
"""
SCHEDULER_TESTS = """
import unittest
import torch
from torch.optim import SGD, Adam

class TestSchedulers(unittest.TestCase):
    def setUp(self):
        self.opt = SGD([torch.zeros(2, 3)], lr=0.1)

    def test_classes(self):
        assert {type(self.opt).__name__, Adam.__name__, torch.optim.AdamW.__name__} == {"MBF"}

    def test_cycle_lr_with_adam(self):
        raise AssertionError("this one does not apply")

    def test_cycle_lr_triangular_mode(self):
        self.opt.param_groups[0]["momentum"] = {momentum}
        self.opt.step()
"""


@pytest.fixture
def run_command(tmp_path):
    def run(folder=tmp_path, **changes):
        values = {"expected": "MBF", "momentum": 5.0} | changes
        (tmp_path / "optim").mkdir()
        for name in ("optim/test_optim.py", "optim/test_swa_utils.py"):
            (tmp_path / name).touch()
        for name, text in (
            ("test_optim.py", OPTIMIZER_TESTS),
            ("optim/test_lrscheduler.py", SCHEDULER_TESTS),
        ):
            for key, value in values.items():
                text = text.replace(f"{{{key}}}", str(value))
            (tmp_path / name).write_text(text)
        return child_process.run([sys.executable, "-m", "tests.torch_suite", folder])

    return run


def test_the_command_runs_the_tests_of_mbf_only(run_command):
    done = run_command()
    assert done.returncode == 0, done.stdout + done.stderr
    optimizers, schedulers = done.stdout.split("test_lrscheduler.py with MBF")
    others = sum(info.optim_cls is not MBF for info in registry.optim_db)
    assert f"1 passed, {others} deselected" in optimizers
    assert "1 passed, 1 skipped, 1 xfailed" in schedulers
    assert "for optimizers with an option 'betas'" in schedulers


def test_the_command_reports_failures(run_command):
    """Of either file: a test that fails, and one that was to be refused and is not."""
    done = run_command(expected="Adam", momentum=0.5)
    assert done.returncode == 1
    optimizers, schedulers = done.stdout.split("test_lrscheduler.py with MBF")
    assert "1 failed" in optimizers
    assert "1 failed, 1 passed, 1 skipped" in schedulers


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_the_command_says_where_the_files_come_from(run_command, folder):
    done = run_command(folder)
    assert done.returncode == 1
    assert "in the folder test/ of its sources" in done.stderr
    assert f"v{torch.__version__.split('+')[0]}" in done.stderr
