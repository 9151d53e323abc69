"""Adam's direction, elementwise: norm layers, embeddings, scalars.

With graft the step is Adam's own, ``m_hat / (sqrt(v_hat) + 1e-8)``, and torch's fused kernel takes
it. The bare algorithm has the heavy-ball momentum ``M`` in place of the bias-corrected average
``m_hat``: the same direction times ``(1 - mu^k) / (1 - mu)``. The state is Adam's average
``m = (1 - mu) M``; when ``mu`` changes, ``m`` is rescaled so that ``M`` stays the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from .checkpoints import States, check_entry
from .curvature import Curvature
from .engine import Engine, check_dense
from .layers import Layer
from .options import ParamGroup, learning_rate_of, momentum_correction

_EPSILON = 1e-8
_format = attrgetter("dtype", "layout")


class ElementwiseEngine(Engine):
    """Updates ``m`` and ``v`` at every step; nothing here depends on the schedule."""

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
        self._k = torch.zeros((), dtype=torch.float32, device=self.device)
        self._momentum: float | None = None  # the mu that the averages are scaled for

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        self._check_unchanged()
        self._follow_momentum(group["momentum"])
        grads: list[Any] = [p.grad for p in self.params]
        for cohort in self._cohorts([grad is not None for grad in grads]):
            lists = [self.params, self.averages, self.squares]
            mine = grads
            if cohort.chosen is not None:
                lists = [[tensors[i] for i in cohort.chosen] for tensors in lists]
                mine = [grads[i] for i in cohort.chosen]
            if self._fusable(lists[0], mine):
                self._fused(cohort.k, group, mine, lists)
            else:
                self._plain(cohort.k, group, mine, lists)

    def _follow_momentum(self, momentum: float) -> None:
        if self._momentum is not None and self._momentum != momentum:
            torch._foreach_mul_(self.averages, (1.0 - momentum) / (1.0 - self._momentum))
        self._momentum = momentum

    def _fusable(self, params: list[Tensor], grads: list[Tensor]) -> bool:
        """Whether torch's fused kernel can take these: all contiguous and of one dtype."""
        formats = set(map(_format, grads))
        if formats != {(self.state_dtype, torch.strided)}:
            for layer in self.layers:
                if layer.weight.grad is not None:
                    check_dense(layer.name, layer.weight.grad)
            return False
        return (
            self._state_contiguous
            and self.state_dtype is self.dtype
            and all(map(Tensor.is_contiguous, params))
            and all(map(Tensor.is_contiguous, grads))
        )

    @staticmethod
    def _correction(k: int, group: ParamGroup) -> float:
        """The divisor of the learning rate that turns Adam's step into the bare algorithm's."""
        return 1.0 if group["graft"] is not None else momentum_correction(group["momentum"], k)

    def _fused(
        self, k: int, group: ParamGroup, grads: list[Tensor], lists: list[list[Tensor]]
    ) -> None:
        params, averages, squares = lists
        correction = self._correction(k, group)
        self._k.fill_(k)
        torch.autograd.graph.increment_version(params)  # the fused kernel does not tell autograd
        torch._fused_adamw_(
            params,
            grads,
            averages,
            squares,
            [],
            [self._k] * len(params),
            lr=learning_rate_of(group) / correction,
            beta1=group["momentum"],
            beta2=group["beta"],
            weight_decay=group["weight_decay"] * correction,
            eps=_EPSILON,
            amsgrad=False,
            maximize=group["maximize"],
        )

    def _plain(
        self, k: int, group: ParamGroup, grads: list[Tensor], lists: list[list[Tensor]]
    ) -> None:
        params, averages, squares = lists
        lr, mu, beta = learning_rate_of(group), group["momentum"], group["beta"]
        sign = -1.0 if group["maximize"] else 1.0
        decay = 1.0 - lr * group["weight_decay"]
        rate = lr / (self._correction(k, group) * (1.0 - mu**k))
        root_scale = (1.0 - beta**k) ** 0.5 or 1.0
        for param, grad, average, square in zip(params, grads, averages, squares, strict=True):
            wide = sign * grad.to(self.state_dtype)
            average.lerp_(wide, 1.0 - mu)
            square.mul_(beta).addcmul_(wide, wide, value=1.0 - beta)
            root = (square.sqrt() / root_scale).add_(_EPSILON)
            w = param.to(self.state_dtype)
            param.copy_(w * decay - rate * (average / root))

    # A warm start is for blocks with a matrix. The averages here start at zero all the same.

    def average(self, grads: dict[Tensor, Tensor], count: int) -> None:
        pass

    def finish_average(self, group: ParamGroup) -> None:
        pass

    def statistics_due(self, group: ParamGroup) -> bool:
        return False

    # --- saving and loading -------------------------------------------------------------------

    def export(self) -> States:
        return {
            param: self._export_counts(i)
            | {
                "momentum": self._momentum,
                "exp_avg": self.averages[i].clone(),
                "exp_avg_sq": self.squares[i].clone(),
            }
            for i, param in enumerate(self.params)
        }

    def check(self, saved: States) -> None:
        for layer in self.layers:
            if layer.weight in saved:
                shape = tuple(layer.weight.shape)
                wanted = {"exp_avg": shape, "exp_avg_sq": shape}
                check_entry(layer.name, saved[layer.weight], wanted, ("momentum",))

    def load(self, saved: States) -> None:
        for i, param in enumerate(self.params):
            entry = saved.get(param)
            if entry is not None:
                self._load_counts(i, entry)
                self._momentum = entry["momentum"]
                self.averages[i].copy_(entry["exp_avg"])
                self.squares[i].copy_(entry["exp_avg_sq"])

    @property
    def state_bytes(self) -> int:
        return sum(t.numel() * t.element_size() for t in (*self.averages, *self.squares))

    @property
    def block_count(self) -> int:
        return sum(p.numel() for p in self.params)
