"""Small networks, inputs for them, and random gradients."""

import zlib

import torch
from torch import nn


def network(device="cpu", dtype=torch.float32):
    """Layers of every kind. Tests set its gradients directly and never call it."""
    torch.manual_seed(0)
    return nn.ModuleDict(
        {
            "conv": nn.Conv2d(2, 3, 3),
            "large": nn.Conv2d(5, 4, 3),
            "depthwise": nn.Conv2d(3, 3, 3, groups=3, bias=False),
            "transposed": nn.ConvTranspose2d(4, 6, 2, groups=2),
            "norm": nn.BatchNorm2d(3),
            "embedding": nn.Embedding(5, 2),
            "first": nn.Linear(4, 3),
            "second": nn.Linear(4, 3),
            "head": nn.Linear(3, 2, bias=False),
        }
    ).to(device, dtype)


def simple(device="cpu", dtype=torch.float32):
    """A convolution, a norm and a linear layer. Tests set its gradients and never call it."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Linear(4, 3)).to(device, dtype)


def classifier(device, *middle, classes=4, dtype=torch.float32):
    """A classifier of 8 x 8 images: a convolution to three channels, ``middle``, a linear layer."""
    torch.manual_seed(0)
    first, last = nn.Conv2d(1, 3, 3), nn.Linear(3 * 36, classes)
    return nn.Sequential(first, *middle, nn.Flatten(), last).to(device, dtype)


def image_batches(device, count, size=8, classes=4, seed=1, dtype=torch.float32):
    """``count`` batches of ``size`` random images and labels for :func:`classifier`."""
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            torch.randn(size, 1, 8, 8, generator=generator, dtype=torch.float64).to(device, dtype),
            torch.randint(classes, (size,), generator=generator).to(device),
        )
        for _ in range(count)
    ]


def gradients(model, step):
    """Random gradients by parameter name; they depend on name, shape and step only."""
    found = {}
    for name, p in model.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(f"{name} {step}".encode()))
        draw = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        found[name] = draw.to(p.device, p.dtype)
    return found


def set_gradients(model, grads):
    """Sets ``p.grad`` of all parameters; returns the values in float64, for the reference."""
    given = {}
    for name, p in model.named_parameters():
        grad = grads.get(name)
        p.grad = None if grad is None else grad.to(p.device, p.dtype)
        given[name] = None if grad is None else p.grad.double().cpu().numpy()
    return given


def take_steps(model, opt, steps, without=()):
    for step in steps:
        grads = gradients(model, step)
        set_gradients(model, {name: g for name, g in grads.items() if name not in without})
        opt.step()


def step_both(model, opt, reference, steps, present=lambda name, step: True):
    """Steps an optimizer and its reference with the same gradients.

    A parameter has a gradient in a step where ``present(name, step)`` is true.
    """
    for step in steps:
        grads = gradients(model, step)
        grads = {name: g for name, g in grads.items() if present(name, step)}
        reference.step(set_gradients(model, grads))
        opt.step()
