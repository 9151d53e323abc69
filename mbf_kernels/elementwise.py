"""Adam's step on single elements, for the tensors of a network that have no blocks."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from . import checks
from .backends.backend import Backend
from .backends.registry import elementwise_backend_for
from .calls import full_precision
from .options import ElementForm, ElementScalars


class Elementwise:
    """Steps of Adam for many tensors at once, of any shapes.

    For every element, with the gradient ``D``, its average ``m`` and the average ``v`` of its
    square::

        m <- momentum m + (1 - momentum) D
        v <- beta v + (1 - beta) D^2
        W <- W - lr (m / c / (sqrt(v / s) + 1e-8) + weight_decay W)

    The computation is in the dtype of the averages: float32, or float64 for float64 parameters. On
    a GPU with Triton a step is one launch, whatever the number of tensors and their dtypes.

    Args:
        params: on one device, of float32, bfloat16 and float16, or all of float64.

    >>> import torch, mbf_kernels as mk
    >>> w, m, v = torch.ones(3), torch.zeros(3), torch.zeros(3)
    >>> steps = mk.Elementwise([w])
    >>> steps.step_([w], [torch.full((3,), 2.0)], [m], [v], lr=0.1, momentum=0.0, beta=0.0)
    >>> w
    tensor([0.9000, 0.9000, 0.9000])
    """

    def __init__(self, params: Sequence[Tensor]) -> None:
        double = any(isinstance(p, Tensor) and p.dtype == torch.float64 for p in params)
        self._allowed = (torch.float64,) if double else checks.SHORT_DTYPES
        checks.check_layers(params, self._allowed)
        self._shapes = [tuple(p.shape) for p in params]
        self.device = params[0].device if params else torch.device("cpu")
        self.average_dtype = torch.float64 if double else torch.float32
        self._form = ElementForm([p.numel() for p in params], self.device)

    def __repr__(self) -> str:
        count = len(self._shapes)
        return f"Elementwise({count} tensor{'s' if count != 1 else ''}, {self.device})"

    @torch.no_grad()
    def step_(
        self,
        params: Sequence[Tensor],
        grads: Sequence[Tensor | None],
        averages: Sequence[Tensor],
        squares: Sequence[Tensor],
        *,
        lr: float | Tensor,
        momentum: float = 0.9,
        beta: float = 0.999,
        weight_decay: float = 0.0,
        average_weight: float | Tensor = 1.0,
        square_weight: float | Tensor = 1.0,
        maximize: bool = False,
    ) -> None:
        """Takes a step in place; nothing changes where there is no gradient.

        ``lr``, ``average_weight`` and ``square_weight`` may be tensors with one value. A GPU reads
        them on the device, so that a captured CUDA graph can be replayed with other values.

        Args:
            params, grads: ``W`` and ``D``, one tensor per parameter; a gradient may be None. They
                may be in different dtypes.
            averages, squares: ``m`` and ``v``, in :attr:`average_dtype`.
            lr: the learning rate.
            momentum, beta: the decay of the averages, in [0, 1].
            average_weight, square_weight: ``c`` and ``s``, what the averages are divided by.
            maximize: ``-D`` takes the place of ``D``.
        """
        lists = list(params), list(grads), list(averages), list(squares)
        self._check(*lists)
        backend = elementwise_backend_for(self.device, self.average_dtype)
        controls = self._controls(backend, lr, average_weight, square_weight)
        if controls is not None:
            lr, average_weight, square_weight = 0.0, 1.0, 1.0
        scalars = ElementScalars(
            float(lr), float(momentum), float(beta), float(weight_decay), float(average_weight),
            float(square_weight), -1.0 if maximize else 1.0, controls,
        )  # fmt: skip
        for name, value in zip(scalars._fields[:-1], scalars[:-1], strict=True):
            if not math.isfinite(value):
                raise ValueError(f"{name}: expected a finite number, got {value}")
        for name in ("average_weight", "square_weight"):
            if getattr(scalars, name) <= 0.0:
                raise ValueError(f"{name}: expected a number above 0, got {getattr(scalars, name)}")
        checks.check_unit_interval("momentum", scalars.momentum)
        checks.check_unit_interval("beta", scalars.beta)
        with full_precision(self.device):
            backend.elementwise_step_(self._form, *lists, scalars)

    def _controls(self, backend: Backend, *live: float | Tensor) -> Tensor | None:
        """:attr:`ElementScalars.controls`, if the step gets any of its values as a tensor."""
        if not (backend.takes_controls and any(isinstance(value, Tensor) for value in live)):
            return None
        # A copy of a host value would wait for the stream; a fill is a launch like any other.
        controls = torch.empty(len(live), dtype=torch.float64, device=self.device)
        for place, value in zip(controls, live, strict=True):
            if isinstance(value, Tensor) and value.device.type == self.device.type:
                place.copy_(value.detach().reshape(()))
            else:
                place.fill_(float(value))
        return controls

    def _check(
        self,
        params: list[Tensor],
        grads: list[Tensor | None],
        averages: list[Tensor],
        squares: list[Tensor],
    ) -> None:
        shapes, device, dtypes = self._shapes, self.device, self._allowed
        checks.check_shapes("params", params, shapes, device, dtypes)
        checks.check_shapes("grads", grads, shapes, device, dtypes, may_be_absent=True)
        checks.check_shapes("averages", averages, shapes, device, (self.average_dtype,))
        checks.check_shapes("squares", squares, shapes, device, (self.average_dtype,))
        checks.check_memory(
            {"params": params, "averages": averages, "squares": squares}, {"grads": grads}
        )
