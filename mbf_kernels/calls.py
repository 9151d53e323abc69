"""How a method of a class of blocks calls a backend: checks before writes, copies where needed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from .backends.backend import Backend

# Lists with one entry per parameter; the gradients are the first list.
TensorLists = Sequence[Sequence[Any]]
# Takes a tensor and its place in its list.
Walkable = Callable[[Tensor, int], bool]


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context without autocast, which would shorten the matrix products of plain torch."""
    kind = device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()


def run_checked(
    backend: Backend,
    device: torch.device,
    lists: TensorLists,
    run: Callable[..., None],
    check: Callable[[], None],
    walkable: Walkable,
    fits: bool = True,
) -> None:
    """Calls ``run(*lists)``; a wrong argument raises before anything is written.

    A backend that checks its own arguments runs at once. If it refuses them, ``check`` raises an
    exception that says why, or some tensors need copies.

    Args:
        walkable: whether kernels can walk the memory of a tensor, given its place in its list;
            others are copied.
        fits: whether the tensors have the dtypes that the blocks were made for, which a backend
            that checks its own arguments does not know.
    """
    if not (backend.checks_arguments and fits):
        check()
        with full_precision(device):
            _run_on_copies(_copied(lists, walkable), lists, run)
        return
    try:
        run(*lists)
    except (RuntimeError, TypeError):
        check()
        copies = _copied(lists, walkable)
        if all(a is b for a, b in zip(chain(*copies), chain(*lists), strict=True)):
            raise
        _run_on_copies(copies, lists, run)


def _copied(lists: TensorLists, walkable: Walkable) -> TensorLists:
    """The lists, with contiguous copies of the tensors that kernels cannot walk."""

    def usable(tensor: Tensor | None, place: int) -> Tensor | None:
        return tensor if tensor is None or walkable(tensor, place) else tensor.detach().contiguous()

    return [[usable(t, place) for place, t in enumerate(tensors)] for tensors in lists]


@torch.no_grad()
def _run_on_copies(copies: TensorLists, lists: TensorLists, run: Callable[..., None]) -> None:
    """Runs on copies, and copies back what changed. Gradients, the first list, are only read."""
    run(*copies)
    for written, originals in zip(copies[1:], lists[1:], strict=True):
        for copy, original in zip(written, originals, strict=True):
            if copy is not original and not torch.equal(copy, original):
                original.copy_(copy)
