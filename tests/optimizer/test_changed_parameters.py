"""Parameters whose data was replaced after the first step: refused, or stepped rightly."""

import pytest
import torch
from torch import nn

from mbf_optim import MBF
from tests.support.optimizer_checks import GRAFTS


class Layers(nn.Module):
    """One layer of every engine."""

    def __init__(self, device):
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, device=device)
        self.linear = nn.Linear(6, 4, device=device)
        self.norm = nn.LayerNorm(6, device=device)
        self.embedding = nn.Embedding(5, 2, device=device)


def step(model, opt, seed):
    generator = torch.Generator().manual_seed(seed)
    for p in model.parameters():
        p.grad = torch.randn(p.shape, generator=generator).to(p.device)
    opt.step()


def larger(t):
    return torch.cat([t, t])


def smaller(t):
    return t[:-1].clone()


def reshaped(t):
    """As many elements in the same memory."""
    return t.view(-1, *t.shape[2:]) if t.dim() > 1 else t.view(2, -1)


def swapped(t):
    return t.view(t.shape[1], t.shape[0], *t.shape[2:]) if t.dim() > 1 else t.view(-1, 1)


CHANGES = [larger, smaller, reshaped, swapped]
NAMES = ["conv.weight", "conv.bias", "linear.weight", "linear.bias", "norm.weight", "norm.bias"]
NAMES += ["embedding.weight"]


@GRAFTS
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", NAMES)
def test_another_shape_is_refused(device, name, change, graft):
    model = Layers(device)
    opt = MBF(model, lr=1e-2, graft=graft)
    step(model, opt, 0)
    param = model.get_parameter(name)
    shape = tuple(param.shape)
    param.grad = None
    param.data = change(param.data)
    before = param.detach().clone()
    match = rf"its state is for shape \({shape[0]},.*now has shape \({param.shape[0]},"
    with pytest.raises(RuntimeError, match=match):
        step(model, opt, 1)
    assert torch.equal(param, before)


@GRAFTS
def test_other_memory_of_the_same_shape_goes_on(device, graft):
    results = []
    for replace in (False, True):
        torch.manual_seed(0)
        model = Layers(device)
        opt = MBF(model, lr=1e-2, graft=graft)
        for k in range(4):
            step(model, opt, k)
            if replace:
                for p in model.parameters():
                    p.data = p.data.clone()
        results.append([p.detach() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@GRAFTS
@pytest.mark.parametrize("name", NAMES)
def test_another_order_of_memory_permutes_nothing(device, name, graft):
    """A transposed view that becomes contiguous, and the other way round."""

    def transposed(t):
        return t.transpose(0, 1).contiguous().transpose(0, 1) if t.dim() > 1 else t.clone()

    def contiguous(t):
        return t.clone(memory_format=torch.contiguous_format)

    results = []
    for orders in ((contiguous,) * 4, (transposed, contiguous), (contiguous, transposed)):
        torch.manual_seed(0)
        model = Layers(device)
        param = model.get_parameter(name)
        opt = MBF(model, lr=1e-2, graft=graft)
        for k in range(4):
            param.data = orders[k % len(orders)](param.data)
            step(model, opt, k)
        results.append(contiguous(param.detach()))
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], rtol=1e-5, atol=1e-6)
