"""Adam's step on single elements in plain torch, with few launches for many tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..options import ELEMENTWISE_EPSILON, ElementScalars

# Temporary memory is two elements for each that is stepped together; larger tensors step alone.
MOST_TOGETHER = 1 << 22


def step_(
    params: Sequence[Tensor],
    grads: Sequence[Tensor | None],
    averages: Sequence[Tensor],
    squares: Sequence[Tensor],
    scalars: ElementScalars,
) -> None:
    present = [i for i, grad in enumerate(grads) if grad is not None and grad.numel() > 0]
    for group in _groups(present, params):
        _step_group(
            [params[i].detach() for i in group],
            [grad.detach() for i in group if (grad := grads[i]) is not None],
            [averages[i] for i in group],
            [squares[i] for i in group],
            scalars,
        )


def _groups(present: Sequence[int], params: Sequence[Tensor]) -> Iterator[list[int]]:
    group: list[int] = []
    elements = 0
    for i in present:
        if group and elements + params[i].numel() > MOST_TOGETHER:
            yield group
            group, elements = [], 0
        group.append(i)
        elements += params[i].numel()
    if group:
        yield group


def _step_group(
    params: list[Tensor],
    grads: list[Tensor],
    averages: list[Tensor],
    squares: list[Tensor],
    scalars: ElementScalars,
) -> None:
    # Gradients and parameters may each have a dtype of their own, which copies convert.
    wide = [torch.empty_like(average) for average in averages]
    torch._foreach_copy_(wide, grads)
    if scalars.sign < 0:
        torch._foreach_neg_(wide)
    torch._foreach_lerp_(averages, wide, 1.0 - scalars.momentum)
    torch._foreach_mul_(squares, scalars.beta)
    torch._foreach_addcmul_(squares, wide, wide, value=1.0 - scalars.beta)
    roots = torch._foreach_sqrt(squares)
    lr, average_weight, square_weight = _live(scalars, wide[0].dtype)
    torch._foreach_div_(roots, square_weight**0.5)
    torch._foreach_add_(roots, ELEMENTWISE_EPSILON)
    steps = torch._foreach_div(averages, roots)
    torch._foreach_copy_(wide, params)
    torch._foreach_mul_(wide, 1.0 - lr * scalars.weight_decay)
    torch._foreach_mul_(steps, lr / average_weight)
    torch._foreach_sub_(wide, steps)
    torch._foreach_copy_(params, wide)


def _live(scalars: ElementScalars, dtype: torch.dtype) -> Sequence[float | Tensor]:
    """lr and the weights of both averages; tensors where they are on the device."""
    if scalars.controls is None:
        return scalars.lr, scalars.average_weight, scalars.square_weight
    return list(scalars.controls.to(dtype))
