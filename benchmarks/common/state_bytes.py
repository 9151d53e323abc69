"""The memory that an optimizer keeps between steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from torch import Tensor
from torch.optim import Optimizer


def state_bytes(optimizer: Optimizer) -> int:
    """Bytes of all tensors of its state; MBF reports its own, which are not all in ``state``."""
    diagnostics = getattr(optimizer, "diagnostics", None)
    if diagnostics is not None:
        return int(diagnostics()["state_bytes"])
    return sum(t.numel() * t.element_size() for t in _tensors(optimizer.state.values()))


def _tensors(kept: object) -> Iterable[Tensor]:
    if isinstance(kept, Tensor):
        yield kept
    elif isinstance(kept, Mapping):
        yield from _tensors(kept.values())
    elif isinstance(kept, Iterable) and not isinstance(kept, str):
        for value in kept:
            yield from _tensors(value)
