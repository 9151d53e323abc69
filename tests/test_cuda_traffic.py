"""What the compiled CUDA kernels move, recorded while they run on the CPU."""

import pytest

import child_process
import cuda_build
from mbf_kernels._extension import EXTENSION

SUITE = "cuda_traffic_suite.py"

pytestmark = pytest.mark.cuda_ptx


@pytest.fixture(scope="module")
def child(tmp_path_factory):
    reason = cuda_build.why_missing()
    if reason:
        pytest.skip(reason)
    if EXTENSION is None:
        pytest.skip("MiniBlocks calls operators only where the extension is built")
    return child_process.run(SUITE, tmp_path_factory.mktemp("traffic"))


@pytest.mark.parametrize("name", child_process.names_in(SUITE))
def test_traffic(name, child):
    outcomes, output = child
    assert name in outcomes, f"it did not run:\n{output[-4000:]}"
    assert outcomes[name] == ""
