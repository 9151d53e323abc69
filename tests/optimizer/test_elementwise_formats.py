"""Elementwise layers in every format of parameters and gradients, against float64."""

import numpy as np
import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.element_cases import LEAST, UNIT, exact_step, numbers

MU, BETA, LR, DECAY = 0.9, 0.8, 0.02, 0.1


def norms(dtype, device):
    torch.manual_seed(0)
    model = nn.ModuleList([nn.LayerNorm(n, dtype=dtype, device=device) for n in (5, 1100, 3)])
    with torch.no_grad():
        for param in model.parameters():
            param.copy_(torch.randn(param.shape))
    return model


def set_gradients(params, k, dtype):
    """Some are missing at some steps, so that the layers do not all count the same steps."""
    for i, param in enumerate(params):
        grad = torch.randn(param.shape).to(param.device)
        param.grad = None if k > 2 and i % 3 == k % 3 else grad.to(param.dtype)
        if param.grad is not None and dtype is not None:
            param.grad_dtype = None
            param.grad = param.grad.to(dtype)


@pytest.mark.parametrize("graft", [None, "adam"])
@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize(
    "formats",
    [
        (torch.bfloat16, None),
        (torch.float16, None),
        (torch.bfloat16, torch.float32),
        (torch.float32, torch.bfloat16),
    ],
    ids=str,
)
def test_steps_of_norm_layers(backend, device, formats, maximize, graft):
    dtype, grad_dtype = formats
    params = list((model := norms(dtype, device)).parameters())
    opt = MBF(
        model, lr=LR, momentum=MU, beta=BETA, weight_decay=DECAY, maximize=maximize, graft=graft
    )
    counts = [0] * len(params)
    for k in range(1, 6):
        set_gradients(params, k, grad_dtype)
        before = [numbers(p) for p in params]
        zeros = [np.zeros(p.shape) for p in params]
        averages, squares = (
            [numbers(opt.state[p][name]) if counts[i] else zeros[i] for i, p in enumerate(params)]
            for name in ("exp_avg", "exp_avg_sq")
        )
        opt.step()
        for i, param in enumerate(params):
            if param.grad is None:
                assert np.array_equal(numbers(param), before[i])
                continue
            counts[i] += 1
            options = {
                "lr": LR, "momentum": MU, "beta": BETA, "weight_decay": DECAY, "maximize": maximize,
                "average_weight": 1.0 - MU ** counts[i] if graft else 1.0 - MU,
                "square_weight": 1.0 - BETA ** counts[i],
            }  # fmt: skip
            w, m, v, size = exact_step(
                before[i], numbers(param.grad), averages[i], squares[i], options
            )
            u = UNIT[torch.float32]
            assert np.allclose(numbers(opt.state[param]["exp_avg"]), m, rtol=8 * u, atol=8 * u)
            assert np.allclose(numbers(opt.state[param]["exp_avg_sq"]), v, rtol=8 * u, atol=0)
            bound = UNIT[dtype] * abs(w) + LEAST.get(dtype, 0) + 32 * u * (abs(before[i]) + size)
            assert np.all(abs(numbers(param) - w) <= bound), f"step {k}, parameter {i}"
