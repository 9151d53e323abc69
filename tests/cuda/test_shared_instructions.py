"""What the CUDA kernels for blocks that rows share execute.

The bounds are some 5 % above what is reached; docs/gpu.md has the figures and what they mean.
"""

import pytest
import torch

import mbf_kernels as mk
from benchmarks.gpu_code.cards import CARDS
from tests.ptx.launch import Options

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

STEP_BYTES = 20
SIDE = 256


@pytest.fixture
def executed(cuda_backend):
    """The launches of a call on one square weight, with pieces of a width."""

    cuda_backend.options, cuda_backend.counting = Options(races=False), True

    def run(width, call):
        params, grads, momenta, squares = ([torch.randn(SIDE, SIDE)] for _ in range(4))
        blocks = mk.SharedBlocks(params, width)
        call(blocks, params, grads, momenta, squares)
        return cuda_backend.results

    return run


def per_parameter(count):
    return count / SIDE**2


@pytest.mark.parametrize(("width", "most"), [(16, 78), (32, 110), (64, 172), (128, 376)])
def test_step(width, most, executed):
    (step,) = executed(width, lambda b, w, d, m, _: b.step_(w, d, m, lr=0.1))
    instructions, products = per_parameter(step.executed), per_parameter(step.multiply_adds)
    assert instructions <= most
    assert width <= products <= width + 4  # those of M P, two of the momenta, and of the weights
    if width <= 64:
        for card in CARDS:
            seconds = card.seconds(STEP_BYTES, instructions, products)
            assert max(seconds, key=seconds.get) == "memory", card.name


@pytest.mark.parametrize(("width", "most"), [(16, 108), (32, 138), (64, 200), (128, 404)])
def test_rescaled_step(width, most, executed):
    norms = torch.ones(1, dtype=torch.float64)
    call = executed(width, lambda b, w, d, m, _: b.step_(w, d, m, lr=0.1, target_norms=norms))
    first, scale, apply = call
    assert per_parameter(first.executed) <= most
    assert per_parameter(scale.executed) <= 1
    assert per_parameter(apply.executed) <= 46


@pytest.mark.parametrize(("width", "most"), [(16, 94), (32, 108), (64, 122), (128, 185)])
def test_update(width, most, executed):
    call = executed(width, lambda b, w, d, m, v: b.update_(d, 0.5, second_moments=v))
    assert per_parameter(sum(launch.executed for launch in call)) <= most
