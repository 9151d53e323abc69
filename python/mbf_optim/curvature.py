"""Gradients that statistics are taken from instead of the step's own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .ranks import Ranks

# Gradients by parameter.
Sample = dict[Tensor, Tensor]


class Curvature(NamedTuple):
    """What a step takes statistics from instead of its own gradients."""

    samples: Sequence[Sample]
    # Makes the new statistics the same on all ranks, if the samples are those of one rank.
    average_: Callable[[Sequence[Tensor]], None] | None = None

    def weighted(self, beta: float) -> Iterator[tuple[Sample, float]]:
        """The samples, with the decays that give each the weight ``(1 - beta) / n``."""
        return zip(self.samples, sample_betas(beta, len(self.samples)), strict=True)


class PendingCurvature:
    """Gathers the gradients for the next statistics until a step takes them."""

    def __init__(self, fisher: str) -> None:
        self.fisher = fisher
        self._samples: list[Sample] = []

    def check(self, fisher: str, method: str) -> None:
        if self.fisher != fisher:
            raise RuntimeError(f"{method}() is for fisher={fisher!r}; this one is {self.fisher!r}")

    def add_gradients(self, sample: Sample) -> None:
        """Adds to the gradients gathered so far, as ``backward()`` adds to ``param.grad``."""
        if not self._samples:
            self._samples.append({})
        total = self._samples[0]
        for param, grad in sample.items():
            total[param] = total[param] + grad if param in total else grad

    def add_samples(self, samples: Iterable[Sample]) -> None:
        """Adds samples to those gathered so far."""
        self._samples += samples

    def require(self) -> None:
        """Raises if nothing was gathered."""
        if not self._samples:
            how = {
                "true": "with opt.curvature(): loss_fn(logits, sampled).backward()",
                "exact": "opt.sample_curvature(model, loss_fn, inputs, targets)",
            }[self.fisher]
            raise RuntimeError(
                f"fisher={self.fisher!r} needs gradients for the statistics of this step: "
                f"if opt.wants_curvature: {how}"
            )

    def take(self, params: Sequence[Tensor], ranks: Ranks) -> Curvature:
        """What was gathered, for the step that takes it.

        Args:
            params: all parameters, in the order that all ranks have in common.
        """
        taken, self._samples = self._samples, []
        if self.fisher == "exact":
            return Curvature(taken, ranks.average_ if ranks.count > 1 else None)
        return Curvature([ranks.average_gradients(params, sample) for sample in taken])


@contextmanager
def separate_gradients(
    params: Sequence[Tensor], scale: float = 1.0
) -> Iterator[dict[Tensor, Tensor]]:
    """Yields a dict that receives, on leaving, the gradients made inside, divided by ``scale``.

    The gradients from before are set aside inside and put back afterwards.
    """
    kept = [p.grad for p in params]
    for p in params:
        p.grad = None
    made: dict[Tensor, Tensor] = {}
    try:
        yield made
        for p in params:
            if p.grad is not None:
                made[p] = p.grad / scale if scale != 1.0 else p.grad
    finally:
        for p, grad in zip(params, kept, strict=True):
            p.grad = grad


def per_sample_gradients(
    model: nn.Module, loss_fn: Callable[[Any, Any], Tensor], inputs: Any, targets: Any
) -> list[Sample]:
    """The gradients of ``loss_fn(model(x), y)`` for every sample of a batch by itself.

    Raises:
        ValueError: batch norm in training mode mixes the samples of a batch, so that none has a
            gradient of its own.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and (
            module.training or module.running_mean is None
        ):
            raise ValueError(
                f"{name}: expected layers that treat every sample by itself, got "
                f"{type(module).__name__} with the statistics of the batch; call eval() on it or "
                "use another norm"
            )
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    values = {name: p.detach() for name, p in named.items()}
    buffers = dict(model.named_buffers())

    def loss_of_one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        out = torch.func.functional_call(model, (values, buffers), (x.unsqueeze(0),))
        return loss_fn(out, y.unsqueeze(0))

    gradient = torch.func.vmap(
        torch.func.grad(loss_of_one), in_dims=(None, 0, 0), randomness="different"
    )
    all_grads = gradient(values, inputs, targets)
    samples = next(iter(all_grads.values())).shape[0]
    return [{named[name]: grads[i] for name, grads in all_grads.items()} for i in range(samples)]


def sample_betas(beta: float, samples: int) -> list[float]:
    """The decays of successive updates that give every sample the weight ``(1 - beta) / n``."""
    share = (1.0 - beta) / samples
    return [
        (1.0 - (samples - i) * share) / (1.0 - (samples - i - 1) * share) for i in range(samples)
    ]


def finite_blocks(grad: Tensor, block_size: int) -> tuple[Tensor, Tensor | int]:
    """A gradient with zeros in the blocks whose ``D D^T`` is not finite, and their number.

    One such block would make the average ``G`` of its samples non-finite for good.
    """
    blocks = grad.reshape(-1, block_size)
    bad = overflows(blocks)
    if grad.device.type == "cpu" and not bad.any():
        return grad, 0
    return torch.where(bad[:, None], 0.0, blocks).reshape(grad.shape), bad.sum()


def overflows(rows: Tensor) -> Tensor:
    """Which rows have a sum of squares that is not finite in the precision of statistics."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    return rows.to(wide).square().sum(dim=-1).isfinite().logical_not()
