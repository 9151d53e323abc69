"""Dense layers whose gradients were exactly zero for a while, or are very large or small."""

import pytest
import torch
from torch import nn

from mbf_optim import MBF


def train(layer, opt, scales, seed=0):
    """One step per scale with that multiple of a random gradient; the movement of each step."""
    generator = torch.Generator().manual_seed(seed)
    moved = []
    for scale in scales:
        before = layer.weight.detach().clone()
        for p in layer.parameters():
            p.grad = scale * torch.randn(p.shape, generator=generator).to(p)
        opt.step()
        moved.append((layer.weight.detach() - before).norm().item())
    return moved


@pytest.mark.parametrize("options", [{}, {"fc": "row"}, {"max_block": 3}], ids=str)
@pytest.mark.parametrize("zeros", [1, 15, 106])
def test_a_layer_switched_on_late_moves_from_the_next_statistics_on(device, options, zeros):
    """Not only after the next refresh of the inverses, up to 100 steps later."""
    layer = nn.Linear(8, 5, device=device)
    opt = MBF(layer, lr=1e-2, graft="adam", **options)
    moved = train(layer, opt, [0.0] * zeros + [1.0] * 20)
    assert moved[:zeros] == [0.0] * zeros
    # A step of Adam moves every element by about lr.
    size = 1e-2 * layer.weight.numel() ** 0.5
    assert all(0.1 * size < step < 2 * size for step in moved[zeros + 10 :])


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1e-10, 1.0, 1e10, 1e17])
@pytest.mark.parametrize("conv", [False, True], ids=["linear", "filter"])
def test_the_scale_of_gradients_does_not_matter(device, scale, conv):
    def made():
        torch.manual_seed(0)
        return nn.Conv2d(3, 5, 3, device=device) if conv else nn.Linear(8, 5, device=device)

    plain, scaled = made(), made()
    options = {"lr": 1e-2, "graft": "adam", "conv": "filter"}
    train(plain, MBF(plain, **options), [1.0] * 12)
    moved = train(scaled, MBF(scaled, **options), [scale] * 12)
    if scale >= 1e-10:  # smaller ones vanish beside Adam's epsilon
        assert all(step > 0.0 for step in moved)
    assert scaled.weight.isfinite().all()
    if 1e-8 < scale < 1e10:  # where Adam's epsilon and the format's range have no say
        torch.testing.assert_close(scaled.weight, plain.weight, rtol=1e-3, atol=1e-4)
