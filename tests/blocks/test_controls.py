"""Scalars and decisions on the device, where plain torch serves a GPU's tensors."""

import pytest
import torch

from mbf_kernels.backends.large import LARGE
from mbf_kernels.backends.reference import TORCH
from mbf_kernels.options import Inversion, StepOptions, StepScalars, Update
from tests.support.block_checks import make


@pytest.mark.parametrize("decisions", [(0.0, 0.0), (1.0, 0.0), (0.0, 1.0), (1.0, 1.0)], ids=str)
@pytest.mark.parametrize("reference", [TORCH, LARGE], ids=lambda backend: backend.name)
def test_controls_replace_what_the_host_says(reference, device, decisions):
    updates, inverts = decisions
    results = []
    for controlled in (False, True):
        blocks, params, grads, momenta = make([(17, 3), (5, 3)], 3, device=device)
        targets = torch.ones(2, dtype=torch.float64, device=device)
        told = StepScalars(lr=0.1, momentum=0.9, momentum_correction=0.4)
        wrong = told._replace(lr=0.0, momentum_correction=1.0)
        controls = torch.tensor([0.1, 0.4, *decisions], dtype=torch.float64, device=device)
        options = StepOptions(
            wrong if controlled else told, targets, True, controls if controlled else None
        )
        tiles = (0, blocks.layout.tiles)
        reference.fused_step_(
            blocks._state,
            params,
            grads,
            momenta,
            options,
            Update(0.5, tiles if controlled or updates else (0, 0)),
            Inversion(
                torch.tensor([0.5], dtype=torch.float64),
                False,
                True,
                tiles if controlled or inverts else (0, 0),
            ),
            blocks._make_buffers(reference),
        )
        results.append([*params, *momenta, targets, blocks.stats(), blocks.inverse()])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
