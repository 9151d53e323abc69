"""The norms of a rescaled step: the last thread block of a tensor to finish adds them up."""

import pytest
import torch

from tests.ptx.launch import ORDERS, Options
from tests.ptx.traffic import LOAD
from tests.support.block_checks import make

pytestmark = [pytest.mark.cuda_ptx, pytest.mark.slow]

COUNTS = (2000, 16, 0, 129, 700)
NORM_BYTES = 16


@pytest.mark.parametrize("d", [9, 14])
def test_norms_do_not_depend_on_the_order_of_thread_blocks(d, cuda_backend):
    results = []
    for seed, order in enumerate((*ORDERS, "random")):
        cuda_backend.options = Options(order=order, seed=seed)
        torch.manual_seed(0)
        blocks, params, grads, momenta = make([(n, d) for n in COUNTS], d)
        blocks.update_(grads, 0.0)
        blocks.invert_(0.5)
        targets = torch.zeros(len(COUNTS), dtype=torch.float64)
        norms = []
        for refresh in (True, False, True):  # what one step leaves behind is fit for the next
            blocks.fused_step_(
                params, grads, momenta, lr=0.1, update=False, invert=False,
                target_norms=targets, refresh_target_norms=refresh,
            )  # fmt: skip
            norms.append(blocks._buffers.norms.clone())
        results.append([*params, targets, *norms])
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other, strict=True))


@pytest.mark.parametrize("d", [9, 14])
def test_the_second_pass_reads_one_norm(d, cuda_backend, recorded):
    blocks, params, grads, momenta = make([(n, d) for n in COUNTS], d)
    blocks.step_(params, grads, momenta, lr=0.1, target_norms=torch.tensor([1.0]))
    _, second = recorded()
    units = len(set(second.accesses["program"].tolist()))
    assert units > len(COUNTS)
    norms = second.within(blocks._buffers.norms).of(LOAD)
    assert norms.distinct_bytes <= units * NORM_BYTES
