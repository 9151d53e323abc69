"""A pytest plugin for torch's test files: ``pytest -p tests.torch_suite.plugin test_optim.py``.

``test_optim.py`` gets MBF through torch's registry; the tests of other optimizers are deselected.
``test_lrscheduler.py`` names its optimizers itself; there MBF takes their place.
"""

import pytest
import torch

from mbf_optim import MBF
from tests.torch_suite.registration import register

# The optimizers of test_lrscheduler.py that MBF replaces. Rprop stays: it is there because it has
# no momentum.
REPLACED = ("SGD", "Adam", "AdamW")

# Tests of test_lrscheduler.py about a property of Adam that MBF does not have.
NOT_APPLICABLE = {
    "test_cycle_lr_with_momentumless_optimizer": "for optimizers without an option 'momentum'",
    "test_cycle_lr_with_adam": "for optimizers with an option 'betas'",
}

# Tests of test_lrscheduler.py that step with a momentum of 5 or 22, of which MBF takes none. They
# must fail with that ValueError. tests/optimizer/test_stepping.py cycles the momentum below 1.
REFUSED = "steps with a momentum of 1 or more, which MBF refuses"
STEPS_THAT_ARE_REFUSED = {
    "test_cycle_lr_exp_range_mode",
    "test_cycle_lr_exp_range_mode_one_lr",
    "test_cycle_lr_exp_range_mode_step_size_up_down",
    "test_cycle_lr_triangular2_mode",
    "test_cycle_lr_triangular2_mode_one_lr",
    "test_cycle_lr_triangular2_mode_step_size_up_down",
    "test_cycle_lr_triangular_mode",
    "test_cycle_lr_triangular_mode_one_lr",
    "test_cycle_lr_triangular_mode_step_size_up_down",
    "test_onecycle_lr_cosine_annealing",
    "test_onecycle_lr_legacy_state_dict",
    "test_onecycle_lr_linear_annealing",
    "test_onecycle_lr_linear_annealing_three_phases",
}


def pytest_configure(config):
    register()


def _tests_schedulers(item):
    return item.path.name == "test_lrscheduler.py"


def pytest_collection_modifyitems(config, items):
    kept = [item for item in items if _tests_schedulers(item) or "MBF" in item.name]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept
    for item in filter(_tests_schedulers, items):
        if item.name in NOT_APPLICABLE:
            item.add_marker(pytest.mark.skip(reason=NOT_APPLICABLE[item.name]))
        elif item.name in STEPS_THAT_ARE_REFUSED:
            item.add_marker(pytest.mark.xfail(reason=REFUSED, raises=ValueError, strict=True))


@pytest.fixture(autouse=True)
def mbf_takes_their_place(request, monkeypatch):
    if not _tests_schedulers(request.node):
        return
    for owner in (torch.optim, request.module):
        for name in REPLACED:
            if hasattr(owner, name):
                monkeypatch.setattr(owner, name, MBF)
