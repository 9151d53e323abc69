"""Estimates of the time that the decompositions of Shampoo and SOAP will take.

A single call cannot be interrupted, and on a network with thousands of channels it takes minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

MEASURED_SIZE = 512
SOAP_LARGEST = 10_000  # by default, larger dimensions get no basis


def shampoo_step(model: nn.Module) -> float:
    """Seconds of the singular value decompositions of a step: one per dimension of a parameter."""
    dimensions = [n for p in model.parameters() for n in p.shape]
    return _cubic(torch.linalg.svd, dimensions)


def soap_first_step(model: nn.Module) -> float:
    """Seconds of the eigenvalue decompositions of the first step; vectors need none."""
    dimensions = [
        n for p in model.parameters() if p.dim() > 1 for n in p.shape if n <= SOAP_LARGEST
    ]
    return _cubic(torch.linalg.eigh, dimensions)


def _cubic(decompose: Callable[[Tensor], object], sizes: Iterable[int]) -> float:
    """Measures one call and scales it with the cube of the sizes."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(MEASURED_SIZE, MEASURED_SIZE, generator=generator)
    matrix = root @ root.mT
    start = time.perf_counter()
    decompose(matrix)
    seconds = time.perf_counter() - start
    return seconds * sum((n / MEASURED_SIZE) ** 3 for n in sizes)
