"""Examples in docstrings give the results they show, and the code of the pages runs."""

import doctest
import importlib
import pkgutil
import re
from contextlib import nullcontext

import pytest
import torch
from torch import nn

import mbf_kernels
import mbf_optim
from mbf_optim import graphed_steps
from tests.support.paths import ROOT
from tests.support.recorded_ops import OperationRecorder

MODULES = [
    name
    for package in (mbf_kernels, mbf_optim)
    for name in [
        package.__name__,
        *(
            m.name
            for m in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
            if ".triton." not in m.name  # these modules import Triton
        ),
    ]
    if not name.endswith("._C")
]
WITH_EXAMPLES = {
    "mbf_kernels.backends.registry",
    "mbf_kernels.errors",
    "mbf_kernels.build_info",
    "mbf_kernels.linalg",
    "mbf_kernels.mini_blocks",
    "mbf_optim",
    "mbf_optim.mbf",
}


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name):
    module = importlib.import_module(name)
    result = doctest.testmod(module)
    assert result.failed == 0
    if name in WITH_EXAMPLES:
        assert result.attempted > 0


@pytest.mark.parametrize("package", [mbf_kernels, mbf_optim], ids=lambda p: p.__name__)
def test_public_names_have_docstrings(package):
    for name in package.__all__:
        assert getattr(package, name).__doc__, name


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten())
        self.head = nn.Linear(4 * 36, 10)

    def forward(self, x):
        return self.head(self.backbone(x))


@pytest.mark.parametrize("page", ["README.md", "docs/optimizer.md"])
def test_the_code_of_a_page_runs(page, capsys, tmp_path, monkeypatch):
    """Runs the Python blocks of a page in order, with the names that its text assumes."""
    monkeypatch.chdir(tmp_path)  # where they may write files
    monkeypatch.setattr(graphed_steps, "_CudaRecorder", lambda: OperationRecorder(list))
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), flags=re.DOTALL)
    assert blocks
    x, y = torch.randn(16, 1, 8, 8), torch.randint(10, (16,))
    names = {
        "model": Network(),
        "loss_fn": nn.CrossEntropyLoss(),
        "loader": [(x, y)] * 3,
        "x": x,
        "y": y,
        "inputs": torch.zeros_like(x),
        "targets": torch.zeros_like(y),
        "torch": torch,
        "mbf_optim": mbf_optim,
    }
    for block in blocks:
        # CUDA graphs: plain torch can do without a GPU what they need.
        on_gpu = mbf_kernels.use_backend("torch") if "capturable" in block else nullcontext()
        with on_gpu:
            exec(compile(block, page, "exec"), names)
