"""Random sequences of uses of the optimizer, on the compiled and the plain backend."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.fuzz.optimizer_edits import OptimizerMachine

pytestmark = pytest.mark.slow

REDUCED = settings(
    max_examples=60,
    stateful_step_count=12,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_random_sequences(extension, device):
    if device.type != "cpu":
        pytest.skip("it compares the two backends of the CPU")
    run_state_machine_as_test(OptimizerMachine, settings=REDUCED)
