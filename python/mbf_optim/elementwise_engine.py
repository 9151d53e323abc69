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
from typing import Any, NamedTuple

import torch
from torch import Tensor

import mbf_kernels as mk

from .checkpoints import States
from .curvature import Curvature, finite_blocks
from .engine import Cohort, Engine, NotTogetherError, Shapes, set_
from .layers import Layer
from .options import ParamGroup, learning_rate_of, momentum_correction, momentum_of

_EPSILON = 1e-8
_dtype = attrgetter("dtype")


class _Numbers(NamedTuple):
    """The numbers of a step; those that may lie on the device are tensors there.

    Attributes:
        told: the step that torch's kernel corrects the averages for; None if it is there already.
        kernel_decay: the weight decay of torch's kernel, which takes no tensor; None where
            parameters have to be multiplied with ``decay`` before.
        rate: the learning rate of torch's kernel.
        decay: what parameters are multiplied with.
        lr, average_weight, square_weight: what :class:`mk.Elementwise` takes.
    """

    told: float | None
    kernel_decay: float | None
    rate: float | Tensor
    decay: float | Tensor
    lr: float | Tensor
    average_weight: float | Tensor
    square_weight: float | Tensor


class ElementwiseEngine(Engine):
    """Updates ``m`` and ``v`` at every step; nothing here depends on the schedule."""

    # The average that the updates of v have made of ones, and the mu that m is scaled for.
    count_names = (*Engine.count_names, "weights", "momentum")
    live_values = 4  # decay, lr, average_weight, square_weight

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
        # What the fused kernel reads: the step that it corrects the averages for.
        self._elements = mk.Elementwise([p.detach() for p in self.params])
        self._k = torch.zeros((), dtype=torch.float32, device=self.device)
        self._rate = torch.zeros((), dtype=torch.float32, device=self.device)

    @property
    def _weights(self) -> Tensor:
        return self.counts[2]

    @property
    def _momenta(self) -> Tensor:
        return self.counts[3]

    def step(self, group: ParamGroup, curvature: Curvature | None) -> None:
        self._follow_momentum(momentum_of(group))
        super().step(group, curvature)

    def before_replay(self, group: ParamGroup) -> None:
        self._follow_momentum(momentum_of(group))
        super().before_replay(group)

    def _present(self) -> list[bool]:
        return [p.grad is not None for p in self.params]

    def _cohorts(self) -> list[Cohort]:
        """Divided where ``v`` has different weights, too."""
        weights = self._weights.tolist()
        found: list[Cohort] = []
        for cohort in super()._cohorts():
            if cohort.chosen is None and weights.count(weights[0]) == len(weights):
                return [cohort]
            groups: dict[float, list[int]] = {}
            for i in range(len(weights)) if cohort.chosen is None else cohort.chosen:
                groups.setdefault(weights[i], []).append(i)
            found += [cohort._replace(chosen=tuple(chosen)) for chosen in groups.values()]
        return found

    def together(self) -> Cohort:
        if len(set(self._weights.tolist())) > 1:
            raise NotTogetherError(
                f"the averages of {self.layers[0].name} and other layers have different weights"
            )
        return super().together()

    def _next_weight(self, cohort: Cohort, group: ParamGroup) -> float:
        """What the update of this step makes of an average of ones."""
        before = float(self._weights[0 if cohort.chosen is None else cohort.chosen[0]])
        beta: float = group["beta"]
        return beta * before + (1.0 - beta)

    def _count(self, cohort: Cohort, group: ParamGroup) -> None:
        chosen = slice(None) if cohort.chosen is None else list(cohort.chosen)
        self._weights[chosen] = self._next_weight(cohort, group)
        super()._count(cohort, group)

    def _take(self, cohort: Cohort, group: ParamGroup, curvature: Curvature | None) -> None:
        lists: list[list[Any]] = [self.params, self.averages, self.squares]
        if cohort.chosen is not None:
            lists = [[tensors[i] for i in cohort.chosen] for tensors in lists]
        params, averages, squares = lists
        grads = [p.grad for p in params]
        numbers = self._numbers(cohort, group)
        if self._fusable(params, grads):
            self._fused(numbers, group, params, grads, averages, squares)
        else:
            self._plain(numbers, group, cohort.chosen)

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

    def _numbers(self, cohort: Cohort, group: ParamGroup) -> _Numbers:
        """The numbers of a step, where the step reads them."""
        if self.live is not None:
            return _Numbers(None, None, self._rate, *self.live)
        return self._values(cohort, group)

    def _values(self, cohort: Cohort, group: ParamGroup) -> _Numbers:
        lr, mu, beta, k = learning_rate_of(group), momentum_of(group), group["beta"], cohort.k
        weight = self._next_weight(cohort, group)
        # The divisor of the learning rate that turns Adam's step into the bare algorithm's.
        correction = 1.0 if group["graft"] is not None else momentum_correction(mu, k)
        average_weight = correction * (1.0 - mu**k)
        decay = 1.0 - lr * group["weight_decay"]
        # The fused kernel divides m by 1 - mu^k and v by 1 - beta^k. If v has another weight, it
        # gets the k that this weight belongs to, and the learning rate makes up for the division of
        # m.
        told: float = k
        if abs(weight - (1.0 - beta**k)) > 1e-9 * weight:
            told = math.inf if weight >= 1.0 else math.log1p(-weight) / math.log(beta)
            correction *= (1.0 - mu**k) / (1.0 - mu**told)
        kernel_decay = group["weight_decay"] * correction
        return _Numbers(told, kernel_decay, lr / correction, decay, lr, average_weight, weight)

    def _fill(self, cohort: Cohort, group: ParamGroup, live: Tensor) -> None:
        numbers = self._values(cohort, group)
        assert numbers.told is not None
        self._k.fill_(numbers.told)
        set_(self._rate, numbers.rate)
        for place, value in zip(live, numbers[3:], strict=True):
            set_(place, value)

    def _fused(
        self,
        numbers: _Numbers,
        group: ParamGroup,
        params: list[Tensor],
        grads: list[Tensor],
        averages: list[Tensor],
        squares: list[Tensor],
    ) -> None:
        if numbers.told is not None:
            self._k.fill_(numbers.told)
        torch.autograd.graph.increment_version(params)  # the fused kernel does not tell autograd
        if numbers.kernel_decay is None and group["weight_decay"] != 0.0:
            torch._foreach_mul_(params, numbers.decay)
        torch._fused_adamw_(
            params,
            grads,
            averages,
            squares,
            [],
            [self._k] * len(params),
            lr=numbers.rate,
            beta1=momentum_of(group),
            beta2=group["beta"],
            weight_decay=numbers.kernel_decay or 0.0,
            eps=_EPSILON,
            amsgrad=False,
            maximize=group["maximize"],
        )

    def _plain(self, numbers: _Numbers, group: ParamGroup, chosen: Sequence[int] | None) -> None:
        """The same step where torch's kernel does not serve: in 16-bit formats above all."""
        grads: list[Tensor | None] = [p.grad for p in self.params]
        if chosen is not None:
            here = set(chosen)
            grads = [grad if i in here else None for i, grad in enumerate(grads)]
        try:
            self._elements.step_(
                self.params,
                grads,
                self.averages,
                self.squares,
                lr=numbers.lr,
                momentum=momentum_of(group),
                beta=group["beta"],
                weight_decay=group["weight_decay"],
                average_weight=numbers.average_weight,
                square_weight=numbers.square_weight,
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
