"""The Triton kernels from the source that is compiled, in Triton's interpreter, against float64."""

import importlib.util

import pytest

import child_process

SUITE = "triton_interpreter_suite.py"

pytestmark = [
    pytest.mark.triton_interpreter,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="the package 'triton' is not installed"
    ),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    return child_process.run(SUITE, tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", child_process.names_in(SUITE))
def test_in_the_interpreter(name, child):
    outcomes, output = child
    assert name in outcomes, f"it did not run:\n{output[-4000:]}"
    assert outcomes[name] == ""
