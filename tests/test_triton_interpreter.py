"""The Triton kernels from the source that is compiled, in Triton's interpreter, against float64."""

import importlib.util

import pytest

import triton_child

SUITE = "triton_interpreter_suite.py"

pytestmark = [
    pytest.mark.triton_interpreter,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None, reason="the package 'triton' is not installed"
    ),
]


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    return triton_child.run(SUITE, tmp_path_factory.mktemp("triton"), TRITON_INTERPRET="1")


@pytest.mark.parametrize("name", triton_child.names_in(SUITE))
def test_in_the_interpreter(name, child):
    outcomes, output = child
    assert name in outcomes, f"it did not run:\n{output[-4000:]}"
    assert outcomes[name] == ""
