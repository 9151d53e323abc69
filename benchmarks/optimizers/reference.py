"""The first two steps of every optimizer whose rule we know, in float64 by a different method.

After two updates the statistics of a kernel block have rank two, so ``(G + damping I)^-1 M`` needs
no inverse of a block: the Woodbury identity leaves a 2 x 2 system. Shared blocks are solved by
Cholesky, or through eigenvalues for another power. Both steps refresh everything, so the schedule
of later refreshes does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

STEPS = 2
MOMENTUM = 0.9
BETA = 0.9
ADAM_BETAS = (0.9, 0.999)
EPS = 1e-8
POWER_ITERATIONS = 20

Pair = Sequence[Tensor]  # the gradients of one parameter at the two steps
Gradients = Sequence[Sequence[Tensor]]  # for every step one tensor per parameter


@dataclass(frozen=True)
class SgdRule:
    """SGD with momentum."""

    lr: float


@dataclass(frozen=True)
class AdamRule:
    """Adam as torch defines it."""

    lr: float


@dataclass(frozen=True)
class MbfRule:
    """The settings of MBF that determine its first two steps."""

    lr: float
    conv: str = "kernel"
    graft: bool = False
    max_block: int | None = None
    linear_power: float = -1.0
    nesterov: bool = False

    def damping(self, power: float = -1.0) -> float:
        """Relative to the mean diagonal of the layer with ``graft``, absolute without."""
        if not self.graft:
            return 3e-3
        return 0.3 if power == -1.0 else 1e-3


Rule = SgdRule | AdamRule | MbfRule


@dataclass(frozen=True)
class Expected:
    """How far a parameter moves, and the size and largest condition number of its blocks.

    ``block_size`` is 0 if the parameter has no inverse.
    """

    moved: Tensor
    block_size: int = 0
    condition: float = 1.0


@dataclass(frozen=True)
class Moment:
    """What an optimizer remembers after a step: decayed sums of all gradients.

    Args:
        momentum: ``M``, the decayed sum.
        mean: ``M_hat``, the same with bias correction: a weighted mean.
        factors: ``x``, one per gradient, such that ``G_hat`` is the sum of ``x x^T``.
    """

    momentum: Tensor
    mean: Tensor
    factors: tuple[Tensor, ...]

    @property
    def square(self) -> Tensor:
        """``v_hat``, the diagonal of ``G_hat``."""
        return torch.stack([x.square() for x in self.factors]).sum(0)

    def sum_direction(self) -> Tensor:
        """``M`` as it is."""
        return self.momentum

    def adam_direction(self) -> Tensor:
        """``M_hat / (sqrt(v_hat) + eps)``."""
        return self.mean / (self.square.sqrt() + EPS)


def _moments(pair: Pair, momentum: float, beta: float) -> tuple[Moment, Moment]:
    first, second = (gradient.double() for gradient in pair)
    total = momentum * first + second
    share = 1 / (1 + beta)
    return (
        Moment(first, first, (first,)),
        Moment(
            total,
            total / (1 + momentum),
            ((beta * share) ** 0.5 * first, share**0.5 * second),
        ),
    )


def _block_moments(pair: Pair, rule: MbfRule) -> tuple[Moment, Moment]:
    """Of layers with blocks: with Nesterov's momentum, ``momentum M + D`` is in the place of M."""
    plain = _moments(pair, MOMENTUM, BETA)
    if not rule.nesterov:
        return plain
    ahead = [MOMENTUM * m.momentum + g.double() for m, g in zip(plain, pair, strict=True)]
    gradients = (1 + MOMENTUM, 1 + MOMENTUM + MOMENTUM**2)  # that they are sums of, decayed
    first, second = (
        replace(m, momentum=total, mean=total / count)
        for m, total, count in zip(plain, ahead, gradients, strict=True)
    )
    return first, second


def expected_moves(model: nn.Module, gradients: Gradients, rule: Rule) -> list[Expected]:
    """How far two steps of an optimizer move every parameter of ``model``, in order."""
    if isinstance(rule, MbfRule):
        return _mbf(model, gradients, rule)
    moments = partial(_moments, momentum=ADAM_BETAS[0], beta=ADAM_BETAS[1])
    direction: Callable[[Moment], Tensor] = Moment.adam_direction
    if isinstance(rule, SgdRule):
        moments = partial(_moments, momentum=MOMENTUM, beta=BETA)
        direction = Moment.sum_direction
    return [
        _elementwise(moments(pair), rule.lr, direction) for pair in zip(*gradients, strict=True)
    ]


def _mbf(model: nn.Module, gradients: Gradients, rule: MbfRule) -> list[Expected]:
    pairs: dict[Tensor, Pair] = dict(
        zip(model.parameters(), zip(*gradients, strict=True), strict=True)
    )
    expected: dict[Tensor, Expected] = {}
    for layer in model.modules():
        own = list(layer.parameters(recurse=False))
        if isinstance(layer, nn.Linear):
            weight, bias = (pairs[p] for p in own)
            rows = [torch.cat([w, b[:, None]], 1) for w, b in zip(weight, bias, strict=True)]
            joined = _shared(rows, 1, rule, rule.linear_power, bias=True)
            both = torch.split(joined.moved, [layer.in_features, 1], dim=1)
            for p, moved in zip(own, both, strict=True):
                expected[p] = Expected(moved.reshape(p.shape), joined.block_size, joined.condition)
        elif isinstance(layer, nn.Conv2d):
            by_kernel = rule.conv == "kernel"
            convolution = _kernels if by_kernel else _filters
            expected[layer.weight] = convolution(pairs[layer.weight], rule)
            for bias_parameter in own[1:]:
                expected[bias_parameter] = _diagonal(pairs[bias_parameter], rule)
        else:
            for p in own:
                expected[p] = _norm_layer(pairs[p], rule)
    return [expected[p] for p in model.parameters()]


def _elementwise(
    moments: tuple[Moment, Moment], lr: float, direction: Callable[[Moment], Tensor]
) -> Expected:
    first, second = map(direction, moments)
    return Expected(-lr * (first + second))


def _norm_layer(pair: Pair, rule: MbfRule) -> Expected:
    def bare(moment: Moment) -> Tensor:
        return moment.momentum / (moment.square.sqrt() + EPS)

    moments = _moments(pair, MOMENTUM, BETA)
    return _elementwise(moments, rule.lr, Moment.adam_direction if rule.graft else bare)


def _diagonal(pair: Pair, rule: MbfRule) -> Expected:
    def bare(moment: Moment) -> Tensor:
        return moment.momentum / (moment.square + rule.damping())

    moments = _moments(pair, MOMENTUM, BETA)
    if rule.graft:
        return _elementwise(moments, rule.lr, Moment.adam_direction)
    return replace(_elementwise(moments, rule.lr, bare), block_size=1)


def _damping(moment: Moment, rule: MbfRule, power: float = -1.0) -> float:
    damping = rule.damping(power)
    return damping * float(moment.square.mean()) if rule.graft else damping


def _rescaled(direction: Tensor, moment: Moment, rule: MbfRule) -> Tensor:
    if not rule.graft:
        return direction
    target = float(moment.adam_direction().clamp(-1, 1).norm())
    return direction * (target / float(direction.norm()))


def _kernels(pair: Pair, rule: MbfRule) -> Expected:
    """A convolution weight ``(O, I, ...)`` with one block per kernel."""
    shape = pair[0].shape
    blocks = [gradient.reshape(shape[0] * shape[1], -1) for gradient in pair]
    moved = torch.zeros_like(blocks[0], dtype=torch.float64)
    condition = 1.0
    for moment in _block_moments(blocks, rule):
        damping = _damping(moment, rule)
        direction = _woodbury(torch.stack(moment.factors, dim=1), moment.momentum, damping)
        moved -= rule.lr * _rescaled(direction, moment, rule)
        condition = max(condition, 1 + float(moment.square.sum(1).max()) / damping)
    return Expected(moved.reshape(shape), blocks[0].shape[1], condition)


def _woodbury(factors: Tensor, momentum: Tensor, damping: float) -> Tensor:
    """``(X^T X + damping I)^-1 M`` for factors X ``(N, r, d)`` and momentum M ``(N, d)``."""
    small = factors @ factors.mT + damping * torch.eye(factors.shape[1], dtype=torch.float64)
    inner: Tensor = torch.linalg.solve(small, factors @ momentum[..., None])
    return (momentum - (factors.mT @ inner)[..., 0]) / damping


def _filters(pair: Pair, rule: MbfRule) -> Expected:
    """A convolution weight ``(O, I, ...)``; a row holds all input channels of an output."""
    shape = pair[0].shape
    expected = _shared([gradient.flatten(1) for gradient in pair], shape[2:].numel(), rule)
    return Expected(expected.moved.reshape(shape), expected.block_size, expected.condition)


def _shared(
    rows: Pair, unit: int, rule: MbfRule, power: float = -1.0, bias: bool = False
) -> Expected:
    """Rows ``(O, C)`` that share one block, or one for each piece."""
    moved = torch.zeros_like(rows[0], dtype=torch.float64)
    condition = 1.0
    pieces = list(_pieces(moved.shape[1], unit, bias, rule.max_block))
    for moment in _block_moments(rows, rule):
        damping = _damping(moment, rule, power)
        direction = torch.empty_like(moved)
        for piece in pieces:
            stacked = torch.cat([x[:, piece] for x in moment.factors])
            stats = stacked.mT @ stacked / moved.shape[0]
            condition = max(condition, 1 + _largest_eigenvalue(stats) / damping)
            stats.diagonal().add_(damping)
            direction[:, piece] = _times_power(moment.momentum[:, piece], stats, power)
        moved -= rule.lr * _rescaled(direction, moment, rule)
    widest = max(piece.stop - piece.start for piece in pieces)
    return Expected(moved, widest, condition)


def _times_power(rows: Tensor, matrix: Tensor, power: float) -> Tensor:
    """``rows matrix^power``."""
    if power == -1.0:
        solved: Tensor = torch.cholesky_solve(rows.mT, torch.linalg.cholesky(matrix))
        return solved.mT
    values, vectors = torch.linalg.eigh(matrix)
    product: Tensor = ((rows @ vectors) * values**power) @ vectors.mT
    return product


def _pieces(columns: int, unit: int, bias: bool, max_block: int | None) -> Iterator[slice]:
    """The pieces that rows are cut into: docs/optimizer.md has the rule.

    The rows of linear layers, and only those, have a bias.
    """
    width = columns
    if max_block is not None and columns > max_block:
        most = max(1, max_block // unit)
        count = math.ceil((columns - bias) / unit / most)
        width = min(most, math.ceil(columns / unit / count)) * unit
        if bias and math.ceil(width / 8) * 8 <= max_block:
            width = math.ceil(width / 8) * 8
    for start in range(0, columns, width):
        yield slice(start, min(start + width, columns))


def _largest_eigenvalue(matrix: Tensor) -> float:
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(matrix.shape[0], dtype=matrix.dtype, generator=generator)
    for _ in range(POWER_ITERATIONS):
        vector = matrix @ (vector / vector.norm())
    return float(vector.norm())
