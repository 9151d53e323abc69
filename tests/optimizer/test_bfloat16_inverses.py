"""With inverses stored in bfloat16 every step of MBF goes downhill."""

import pytest
import torch
from torch import nn

from mbf_optim import MBF


@pytest.mark.parametrize("inverse_dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kernel", [3, 5])
def test_every_step_goes_downhill(backend, device, kernel, inverse_dtype):
    """All images show the same pattern: the gradients of a kernel have nearly one direction.

    Without momentum a step from zero is -lr P g. Every block must have g . P g > 0.
    """
    torch.manual_seed(0)
    model = nn.Conv2d(3, 8, kernel, bias=False).to(device)
    opt = MBF(
        model, lr=1.0, momentum=0.0, damping=1e-7, stats_every=1, inverse_every=3,
        inverse_dtype=inverse_dtype, graft=None,
    )  # fmt: skip
    pattern = torch.randn(3, 12, 12)
    for k in range(12):
        images = torch.randn(16, 3, 1, 1) * pattern + 1e-3 * torch.randn(16, 3, 12, 12)
        outputs = torch.randn(16, 8, 1, 1).expand(-1, -1, 13 - kernel, 13 - kernel)
        with torch.no_grad():
            model.weight.zero_()
        opt.zero_grad()
        (model(images.to(device)) - outputs.to(device)).square().mean().backward()
        opt.step()
        g = model.weight.grad.double().flatten(2)
        u = -model.weight.detach().double().flatten(2)
        assert ((g * u).sum(dim=2) > 0).all(), f"step {k}"
    assert opt.diagnostics()["failed_blocks"] == 0
