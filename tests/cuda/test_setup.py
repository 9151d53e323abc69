"""A build that requires CUDA, and CPU operators called with arguments for CUDA tensors only."""

import sys

import pytest
import torch

import mbf_kernels as mk
from tests.support import child_process
from tests.support.operator_arguments import operator_arguments
from tests.support.paths import ROOT


def test_requiring_cuda_without_a_cuda_build_of_torch_is_an_error(tmp_path):
    if torch.version.cuda is not None:
        pytest.skip("this torch is a CUDA build")
    if not (ROOT / "setup.py").exists():
        pytest.skip("not a source tree")
    command = [sys.executable, "setup.py", "build_ext", "--build-lib", str(tmp_path)]
    done = child_process.run(command, MBF_CUDA="1")
    assert done.returncode != 0
    assert f"MBF_CUDA=1, but torch {torch.__version__} is a " in done.stderr
    assert not list(tmp_path.iterdir())


def test_the_build_names_known_architectures(extension):
    known = {f"sm_{a}" for a in (75, 80, 86, 89, 90, 100, 120)}
    assert set(mk.build_info().cuda_architectures) <= known
    if torch.version.cuda is None:
        assert mk.build_info().cuda_architectures == ()


def test_the_cpu_operator_for_shared_blocks_refuses_controls(extension):
    param, absent = torch.ones(3, 4), torch.empty(0, dtype=torch.bool)
    state = mk.SharedBlocks([param])._state
    with pytest.raises(RuntimeError, match="controls: expected None on cpu"):
        torch.ops.mbf_kernels.shared_step_(
            [param], [absent], [param.clone()], state.inverse, state.table,
            [0.1, 0.9, 0.0, 1.0, 0.0], [], controls=torch.zeros(4, dtype=torch.float64),
        )  # fmt: skip


@pytest.mark.parametrize("name", ["step_", "fused_step_"])
def test_cpu_operators_refuse_controls(extension, name):
    arguments = operator_arguments(name) | {"controls": torch.zeros(4, dtype=torch.float64)}
    before = [p.clone() for p in arguments["params"]]
    with pytest.raises(RuntimeError, match="controls: expected None on cpu"):
        getattr(torch.ops.mbf_kernels, name)(**arguments)
    assert all(torch.equal(a, b) for a, b in zip(before, arguments["params"], strict=True))
