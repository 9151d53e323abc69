"""Adam's direction, elementwise: norm layers, embeddings, scalars.

With graft the step is Adam's own, ``m_hat / (sqrt(v_hat) + 1e-8)``. Torch's fused kernel takes it
in one dtype, ``mk.Elementwise`` takes the rest. The bare algorithm has the heavy-ball momentum
``M`` in place of the bias-corrected average ``m_hat``: the same direction times
``(1 - mu^k) / (1 - mu)``. The state is Adam's average ``m = (1 - mu) M``; when ``mu`` changes,
``m`` is rescaled so that ``M`` stays the same.

As everywhere in this package, ``v`` is divided by the average that its updates have made of ones,
which is Adam's ``1 - beta^k`` while ``beta`` stays the same. After a warm start it is 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

import mbf_kernels as mk

from .checkpoints import States
from .curvature import Curvature, finite_blocks
from .engine import Cohort, Engine, Shapes
from .layers import Layer
from .options import ParamGroup, learning_rate_of, momentum_correction, momentum_of

_EPSILON = 1e-8
_dtype = attrgetter("dtype")


class ElementwiseEngine(Engine):
    """Updates ``m`` and ``v`` at every step; nothing here depends on the schedule."""

    # The average that the updates of v have made of ones, and the mu that m is scaled for.
    count_names = (*Engine.count_names, "weights", "momentum")

    def __init__(self, layers: Sequence[Layer], kind: str) -> None:
        super().__init__(layers, kind)
        self.params = [layer.weight for layer in self.layers]
        short = self.dtype in (torch.bfloat16, torch.float16)
        self.state_dtype = torch.float32 if short else self.dtype

        def zeros(param: Tensor) -> Tensor:
            like = param.detach()
            return torch.zeros_like(like, dtype=self.state_dtype)

        self.averages = [zeros(p) for p in self.params]
        self.squares = [zeros(p) for p in self.params]
        # In the order of the parameters, which need not be theirs later on.
        self._state_contiguous = all(map(Tensor.is_contiguous, self.averages))
        self._elements = mk.Elementwise([p.detach() for p in self.params])
        self._k = torch.zeros((), dtype=torch.float32, device=self.device)

    @property
    def _weights(self) -> Tensor:
        return self.counts[2]

    @property
    def _momenta(self) -> Tensor:
        return self.counts[3]

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        self._follow_momentum(momentum_of(group))
        beta = group["beta"]
        grads: list[Any] = [p.grad for p in self.params]
        for cohort in self._cohorts([grad is not None for grad in grads]):
            for weight, chosen in self._by_weight(cohort):
                lists = [self.params, grads, self.averages, self.squares]
                mine = lists if chosen is None else [[own[i] for i in chosen] for own in lists]
                weight = beta * weight + (1.0 - beta)
                if self._fusable(*mine[:2]):
                    self._fused(cohort.k, weight, group, *mine)
                else:
                    self._plain(cohort.k, weight, group, lists, chosen)
                self._weights[slice(None) if chosen is None else list(chosen)] = weight

    def _by_weight(self, cohort: Cohort) -> list[tuple[float, Sequence[int] | None]]:
        """Divides a cohort where ``v`` has different weights; usually it stays whole."""
        weights = self._weights.tolist()
        if cohort.chosen is None and weights.count(weights[0]) == len(weights):
            return [(weights[0], None)]
        groups: dict[float, list[int]] = {}
        for i in range(len(weights)) if cohort.chosen is None else cohort.chosen:
            groups.setdefault(weights[i], []).append(i)
        return list(groups.items())

    def _follow_momentum(self, momentum: float) -> None:
        """Rescales the averages if ``mu`` changed."""
        for i, before in enumerate(self._momenta.tolist()):
            if before != momentum:
                self.averages[i].mul_((1.0 - momentum) / (1.0 - before))
                self._momenta[i] = momentum

    def _fusable(self, params: list[Tensor], grads: list[Tensor]) -> bool:
        """Whether torch's fused kernel can take these: all contiguous and of one dtype."""
        return (
            self._state_contiguous
            and self.state_dtype is self.dtype
            and set(map(_dtype, grads)) == {self.dtype}
            and all(map(Tensor.is_contiguous, params))
            and all(map(Tensor.is_contiguous, grads))
        )

    @staticmethod
    def _correction(k: int, group: ParamGroup) -> float:
        """The divisor of the learning rate that turns Adam's step into the bare algorithm's."""
        return 1.0 if group["graft"] is not None else momentum_correction(momentum_of(group), k)

    def _fused(
        self,
        k: int,
        weight: float,
        group: ParamGroup,
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        squares: list[Tensor],
    ) -> None:
        mu, beta = momentum_of(group), group["beta"]
        correction = self._correction(k, group)
        # The kernel divides m by 1 - mu^k and v by 1 - beta^k. If v has another weight, it gets the
        # k that this weight belongs to, and the learning rate makes up for the division of m.
        told: float = k
        if abs(weight - (1.0 - beta**k)) > 1e-9 * weight:
            told = math.inf if weight >= 1.0 else math.log1p(-weight) / math.log(beta)
            correction *= (1.0 - mu**k) / (1.0 - mu**told)
        self._k.fill_(told)
        torch.autograd.graph.increment_version(params)  # the fused kernel does not tell autograd
        torch._fused_adamw_(
            params,
            grads,
            averages,
            squares,
            [],
            [self._k] * len(params),
            lr=learning_rate_of(group) / correction,
            beta1=mu,
            beta2=beta,
            weight_decay=group["weight_decay"] * correction,
            eps=_EPSILON,
            amsgrad=False,
            maximize=group["maximize"],
        )

    def _plain(
        self,
        k: int,
        weight: float,
        group: ParamGroup,
        lists: list[list[Any]],
        chosen: Sequence[int] | None,
    ) -> None:
        """The same step where torch's kernel does not serve: in 16-bit formats above all."""
        params, grads, averages, squares = lists
        if chosen is not None:
            here = set(chosen)
            grads = [grad if i in here else None for i, grad in enumerate(grads)]
        mu = momentum_of(group)
        correction = self._correction(k, group)
        try:
            self._elements.step_(
                params,
                grads,
                averages,
                squares,
                lr=learning_rate_of(group),
                momentum=mu,
                beta=group["beta"],
                weight_decay=group["weight_decay"],
                average_weight=correction * (1.0 - mu**k),
                square_weight=weight,
                maximize=group["maximize"],
            )
        except mk.TensorError as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{self.layers[error.index].name}, {error}") from error

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        for i, param in enumerate(self.params):
            if param not in grads:
                continue
            grad, left_out = finite_blocks(grads[param], 1)
            self.left_out += left_out
            wide = grad.to(self.state_dtype)
            self.squares[i].mul_(1.0 - 1.0 / count).addcmul_(wide, wide, value=1.0 / count)
            self._weights[i] = (1.0 - 1.0 / count) * self._weights[i] + 1.0 / count
            self._had_warm_start(i)

    def average_over_ranks(self, average_: Callable[[Sequence[Tensor]], None]) -> None:
        weights = self._weights.to(self.device)
        average_([*self.squares, weights])
        self._weights.copy_(weights)

    def finish_average(self, group: ParamGroup) -> None:
        pass  # there is nothing to invert

    def statistics_due(self, group: ParamGroup) -> bool:
        return False

    # --- saving and loading -------------------------------------------------------------------

    def tensors(self) -> States:
        return {
            param: {"exp_avg": average, "exp_avg_sq": square}
            for param, average, square in zip(self.params, self.averages, self.squares, strict=True)
        }

    def shapes(self, i: int, param: Tensor) -> Shapes:
        return {"exp_avg": [tuple(param.shape)], "exp_avg_sq": [tuple(param.shape)]}

    def load_tensors(self, saved: States) -> None:
        for i, param in enumerate(self.params):
            if param in saved:
                self.averages[i].copy_(saved[param]["exp_avg"])
                self.squares[i].copy_(saved[param]["exp_avg_sq"])

    @property
    def state_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.averages, *self.squares))

    @property
    def block_count(self) -> int:
        return sum(p.numel() for p in self.params)
