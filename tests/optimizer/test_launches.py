"""How many launches a step takes on a GPU, of networks with all their layers.

No step may take launches in proportion to the layers, whatever the dtype of the parameters. The
widths are those of small networks: only the number of layers and their kinds matter.

Launches are counted as ``tests/support/launch_count.py`` says: Triton's kernels, and torch's
operators on tensors of the device. Torch takes lists of tensors together where their shapes,
strides and dtypes allow it, and otherwise one by one.
"""

import pytest
import torch
from torch import nn

import mbf_kernels as mk
from benchmarks.optimizers.networks import NETWORKS
from mbf_optim import MBF
from tests.support.launch_count import DEVICE, READ_BY_TORCH, launches_counted
from tests.support.requirements import require, triton

DTYPES = [torch.float32, torch.bfloat16]
INVERSE, STATISTICS, PLAIN = 16, 20, 23  # steps; the first one is one of the early refreshes


class Block(nn.Module):
    """The layers of a transformer's block."""

    def __init__(self, width):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


def transformer(width=384, tokens=65, context=256):
    """Six blocks, with embeddings, a last norm and a head."""
    blocks = [Block(width) for _ in range(6)]
    embeddings = nn.Embedding(tokens, width), nn.Embedding(context, width)
    return nn.Sequential(*embeddings, *blocks, nn.LayerNorm(width), nn.Linear(width, tokens))


def resnet50():
    return nn.Sequential(*NETWORKS["resnet50"].layers())


def counted(make, dtype, steps, **options):
    """The log of each of these steps; all others are taken too."""
    require(triton)
    with torch.device(DEVICE):
        model = make().to(dtype)
    opt = MBF(model, lr=1e-3, graft="adam", **options)
    params = list(model.parameters())
    found = {}
    with launches_counted() as log:
        for k in range(1, max(steps) + 1):
            for param in params:
                param.grad = torch.empty_like(param)
            log.clear()
            opt.step()
            found[k] = (log.launches, log.by_name(), log.waits, log.tables)
    return [found[k] for k in steps]


# The network, options, and the most launches of a step between refreshes and of a refresh.
NETWORK_CASES = {
    "transformer": (transformer, {}, 15, 200),
    "resnet50": (resnet50, {"conv": "filter"}, 25, 800),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", NETWORK_CASES)
def test_steps_between_refreshes(name, dtype):
    make, options, most, _ = NETWORK_CASES[name]
    plain, statistics = counted(make, dtype, (PLAIN, STATISTICS), **options)
    for launches, names, waits, tables in (plain, statistics):
        # New addresses of gradients are copied to the device, in one copy per table.
        assert launches + tables <= most, names
        assert waits == 0


@pytest.mark.parametrize("name", NETWORK_CASES)
def test_refreshes(name):
    """Blocks of one width are inverted together.

    The host waits where torch does, which reads whether eigenvalues converged and factors are good.
    """
    make, options, _, most = NETWORK_CASES[name]
    ((launches, names, waits, _),) = counted(make, torch.float32, (INVERSE,), **options)
    assert launches <= most, names
    assert waits == sum(names.get(name, 0) for name in READ_BY_TORCH)


@pytest.mark.parametrize("kind", [{"groups": 4}, {"transposed": True}, {"kernels": True}, {}])
def test_refreshes_of_parts_do_not_wait(kind):
    """Nor do those of padded pieces, of one width in a group, or with a damping for each layer."""
    require(triton)
    with launches_counted() as log:
        layers = [mk.Rows(torch.empty(8, 10, 3, 3, device=DEVICE), **kind) for _ in range(3)]
        blocks = mk.SharedBlocks(layers, 36)
        log.clear()
        for i in range(3):
            blocks.invert_(0.5, relative=True, debias=True, part=(i, 3))
        blocks.invert_(torch.full((3,), 0.1, dtype=torch.float64), relative=True)
        assert log.waits == 0


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_single_elements_without_triton(dtype):
    """Plain torch takes lists of tensors together: 36 at a time, where an operator has four."""
    require(triton)
    shapes = [(64,)] * 30
    with launches_counted() as log, mk.use_backend("torch"):
        params, grads = ([torch.empty(s, dtype=dtype, device=DEVICE) for s in shapes] for _ in "pg")
        averages, squares = ([torch.empty(s, device=DEVICE) for s in shapes] for _ in "ms")
        steps = mk.Elementwise(params)
        log.clear()
        steps.step_(params, grads, averages, squares, lr=0.1)
        assert log.launches <= 14, log.by_name()
