"""One pass over the data that collects gradients and leaves everything else as it was."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from tqdm.auto import tqdm


def _to_device(value: Any, device: torch.device) -> Any:
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if isinstance(value, Mapping):
        return {key: _to_device(entry, device) for key, entry in value.items()}
    if isinstance(value, (tuple, list)):
        return type(value)(_to_device(entry, device) for entry in value)
    return value


def _output(model: nn.Module, inputs: Any) -> Any:
    if isinstance(inputs, Mapping):
        return model(**inputs)
    if isinstance(inputs, (tuple, list)):
        return model(*inputs)
    return model(inputs)


@contextmanager
def _restoring(model: nn.Module, params: Sequence[Tensor]) -> Iterator[None]:
    """Restores gradients, buffers and random number generators at the end."""
    grads = [p.grad for p in params]
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    devices = sorted({p.device.index or 0 for p in params if p.device.type == "cuda"})
    with torch.random.fork_rng(devices=devices):
        try:
            yield
        finally:
            for p, grad in zip(params, grads, strict=True):
                p.grad = grad
            with torch.no_grad():
                for buffer, before in buffers:
                    buffer.copy_(before)


def average_gradients(
    model: nn.Module,
    loss_fn: Callable[[Any, Any], Tensor],
    batches: Iterable[Any],
    params: Sequence[Tensor],
    take: Callable[[dict[Tensor, Tensor], int], None],
    progress: bool,
) -> int:
    """Calls ``take(gradients by parameter, n)`` for the n-th batch, n = 1, 2, ...

    Returns:
        the number of batches.
    """
    count = 0
    device = params[0].device
    with (
        _restoring(model, params),
        tqdm(batches, desc="warm start", unit="batch", disable=not progress, leave=False) as bar,
    ):
        try:
            for batch in bar:
                if not isinstance(batch, (tuple, list)) or len(batch) != 2:
                    raise TypeError(
                        "batches: expected pairs (inputs, targets), got "
                        f"{type(batch).__name__}"
                        + (f" of {len(batch)}" if isinstance(batch, (tuple, list)) else "")
                    )
                inputs, targets = _to_device(batch[0], device), _to_device(batch[1], device)
                for p in params:
                    p.grad = None
                with torch.enable_grad():
                    loss = loss_fn(_output(model, inputs), targets)
                    torch.autograd.backward(loss)
                grads = {p: p.grad for p in params if p.grad is not None}
                take(grads, count + 1)
                count += 1
        except KeyboardInterrupt:
            warnings.warn(
                f"warm start interrupted: the statistics are those of {count} batches",
                RuntimeWarning,
                stacklevel=4,
            )
    return count
