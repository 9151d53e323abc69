"""How long the decompositions of Shampoo and SOAP will take, before they are begun.

One call cannot be interrupted; on a network with thousands of channels it can last for minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor, nn

MEASURED_SIZE = 512
SOAP_LARGEST = 10_000  # dimensions above keep no basis, by its default


def shampoo_step(model: nn.Module) -> float:
    """Seconds of the singular value decompositions of one step, for every dimension of all."""
    dimensions = [n for p in model.parameters() for n in p.shape]
    return _cubic(torch.linalg.svd, dimensions)


def soap_first_step(model: nn.Module) -> float:
    """Seconds of the eigenvalue decompositions of the first step; vectors have none."""
    dimensions = [
        n for p in model.parameters() if p.dim() > 1 for n in p.shape if n <= SOAP_LARGEST
    ]
    return _cubic(torch.linalg.eigh, dimensions)


def _cubic(decompose: Callable[[Tensor], object], sizes: Iterable[int]) -> float:
    """One measured call, scaled with the cube of the size."""
    generator = torch.Generator().manual_seed(0)
    root = torch.randn(MEASURED_SIZE, MEASURED_SIZE, generator=generator)
    matrix = root @ root.mT
    start = time.perf_counter()
    decompose(matrix)
    seconds = time.perf_counter() - start
    return seconds * sum((n / MEASURED_SIZE) ** 3 for n in sizes)
