"""What one layer costs each optimizer: the paper's formulas, our own counts, and measurements."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import torch
from torch import Tensor, nn

from ...common.state_bytes import state_bytes
from ...common.timing import Entrant, Plan, Timer, time_interleaved
from ..baselines.kfac import KFAC
from ..baselines.layer_tape import MatrixLayer
from ..baselines.shampoo import Shampoo
from ..methods import METHODS
from ..settings import Settings
from ..task import NormalTask

NEVER = 10**9
SETTINGS = Settings(lr=1e-6, damping=0.1)


@dataclass(frozen=True)
class Shape:
    """A layer and the batch it sees.

    Args:
        kernel: elements of a kernel, or None for a dense layer.
        side: of the images that a convolution gets, which are padded.
    """

    outputs: int
    inputs: int
    samples: int
    kernel: int | None = None
    side: int = 1

    @property
    def positions(self) -> int:
        return self.side * self.side

    @property
    def taps(self) -> int:
        """Elements of a kernel; a dense layer has kernels of one."""
        return self.kernel or 1

    @property
    def fan_in(self) -> int:
        return self.inputs * self.taps

    @property
    def elements(self) -> int:
        """The parameters of the layer."""
        return self.outputs * self.fan_in

    def layer(self) -> MatrixLayer:
        if self.kernel is None:
            return MatrixLayer("layer", nn.Linear(self.inputs, self.outputs, bias=False))
        size = math.isqrt(self.kernel)
        conv = nn.Conv2d(self.inputs, self.outputs, size, padding=size // 2, bias=False)
        return MatrixLayer("layer", conv)

    def batch(self) -> Tensor:
        if self.kernel is None:
            return torch.randn(self.samples, self.inputs)
        return torch.randn(self.samples, self.inputs, self.side, self.side)


Formula = Callable[[Shape], float]


@dataclass(frozen=True)
class Work:
    """The bytes that must be moved and the floating-point operations."""

    bytes: float = 0.0
    operations: float = 0.0


@dataclass(frozen=True)
class Rates:
    """What the machine can do: bytes moved and operations of matrix products per second."""

    bytes: float
    operations: float

    def seconds(self, work: Work) -> float:
        """The least time: bound by memory or by arithmetic, whatever takes longer."""
        return max(work.bytes / self.bytes, work.operations / self.operations)


@dataclass(frozen=True)
class Cost:
    """An entry of the paper's tables 1, 2 and 3.

    Args:
        phase: ``step``, ``statistics`` (each T1 steps), ``inversion`` (each T2 steps), ``pass``
            (the additional backward pass, each T1 steps) or ``storage``.
        paper: the paper's formula, without constants.
        work: our own count; for ``storage``, the bytes.
        reason: why the two differ.
    """

    method: str
    phase: str
    paper: Formula
    work: Callable[[Shape], Work]
    reason: str = ""


FLOAT = 4
# Operations of an inverse root, in n^3: some 9 for eigenvalues and vectors, 2 for their product.
ROOT = 11.0


def _triangles(shape: Shape) -> float:
    """Elements of the packed triangles of all kernels."""
    d = shape.taps
    return shape.elements / d * d * (d + 1) / 2


def _adam(shape: Shape) -> Work:
    return Work(bytes=7 * FLOAT * shape.elements)  # reads W, D, M, V; writes W, M, V


def _modes(shape: Shape) -> tuple[int, ...]:
    sizes = (shape.outputs, shape.inputs)
    return sizes if shape.kernel is None else (*sizes, shape.kernel)


def _shampoo_products(shape: Shape) -> Work:
    """A product of the gradient with a matrix, or with itself, along every mode."""
    modes = _modes(shape)
    # Each mode is brought to the front, which reads and writes the gradient once more.
    moved = 3 * FLOAT * shape.elements * len(modes)
    return Work(bytes=moved, operations=2 * shape.elements * sum(modes))


def _shampoo_roots(shape: Shape) -> Work:
    return Work(operations=ROOT * sum(mode**3 for mode in _modes(shape)))


def _squares(*sizes: int) -> Work:
    """Statistics and preconditioners, whole square matrices."""
    return Work(bytes=2 * FLOAT * sum(size**2 for size in sizes))


def _kfac_costs(dense: bool) -> tuple[Cost, ...]:
    def rows(s: Shape) -> int:
        return s.samples * s.positions

    return (
        Cost(
            "kfac",
            "pass",
            lambda s: rows(s) * s.elements,
            lambda s: Work(FLOAT * rows(s) * (s.inputs + s.outputs), 2 * rows(s) * s.elements),
        ),
        Cost(
            "kfac",
            "statistics",
            lambda s: rows(s) * (s.fan_in**2 + s.outputs**2),
            lambda s: Work(operations=2 * rows(s) * (s.fan_in**2 + s.outputs**2)),
        ),
        Cost(
            "kfac",
            "inversion",
            lambda s: s.fan_in**3 + s.outputs**3,
            lambda s: Work(operations=s.fan_in**3 + s.outputs**3),
        ),
        Cost(
            "kfac",
            "step",
            lambda s: s.elements * (s.fan_in + s.outputs),
            lambda s: Work(operations=2 * s.elements * (s.fan_in + s.outputs)),
        ),
        Cost(
            "kfac",
            "storage",
            lambda s: s.fan_in**2 + s.outputs**2 + (s.elements if dense else 0),
            lambda s: _squares(s.fan_in, s.outputs),
            "the paper's table for dense layers also counts the result",
        ),
    )


_RESULT_ONLY = "the paper counts the elements of the result, not the products that make it"

CONVOLUTION = (
    Cost("adam", "step", lambda s: s.elements, _adam),
    Cost("adam", "storage", lambda s: s.elements, lambda s: Work(2 * FLOAT * s.elements)),
    Cost(
        "mbf",
        "statistics",
        lambda s: s.elements * s.taps,
        lambda s: Work(2 * FLOAT * _triangles(s), 3 * _triangles(s)),
        "triangles of G are read and written",
    ),
    Cost(
        "mbf",
        "inversion",
        lambda s: s.elements * s.taps**2,
        lambda s: Work(2 * FLOAT * _triangles(s), s.elements * (s.taps**2 + s.taps + 1)),
        "small kernels are bound by reading G and writing P, large ones by arithmetic",
    ),
    Cost(
        "mbf",
        "step",
        lambda s: s.elements * s.taps,
        lambda s: Work(FLOAT * (_triangles(s) + 5 * s.elements), 2 * s.elements * s.taps),
        "bound by memory: D, M and W count beside the triangles of P",
    ),
    Cost(
        "mbf",
        "storage",
        lambda s: s.elements * s.taps,
        lambda s: Work(2 * FLOAT * _triangles(s)),
        "packed triangles",
    ),
    Cost(
        "shampoo",
        "statistics",
        lambda s: s.inputs**2 + s.taps**2 + s.outputs**2,
        _shampoo_products,
        _RESULT_ONLY,
    ),
    Cost(
        "shampoo",
        "inversion",
        lambda s: s.inputs**3 + s.taps**3 + s.outputs**3,
        _shampoo_roots,
    ),
    Cost(
        "shampoo",
        "step",
        lambda s: s.elements * (s.inputs + s.taps + s.outputs),
        _shampoo_products,
    ),
    Cost(
        "shampoo",
        "storage",
        lambda s: s.inputs**2 + s.taps**2 + s.outputs**2,
        lambda s: _squares(s.inputs, s.taps, s.outputs),
    ),
    *_kfac_costs(dense=False),
)
DENSE = (
    Cost("adam", "step", lambda s: s.elements, _adam),
    Cost("adam", "storage", lambda s: s.elements, lambda s: Work(2 * FLOAT * s.elements)),
    Cost(
        "mbf",
        "statistics",
        lambda s: s.outputs * s.inputs**2,
        lambda s: Work(operations=2 * s.outputs * s.inputs**2),
    ),
    Cost("mbf", "inversion", lambda s: s.inputs**3, lambda s: Work(operations=s.inputs**3)),
    Cost(
        "mbf",
        "step",
        lambda s: s.outputs * s.inputs**2,
        lambda s: Work(5 * FLOAT * s.elements, 2 * s.outputs * s.inputs**2),
    ),
    Cost("mbf", "storage", lambda s: s.inputs**2, lambda s: _squares(s.inputs)),
    Cost(
        "shampoo",
        "statistics",
        lambda s: s.inputs**2 + s.outputs**2,
        _shampoo_products,
        _RESULT_ONLY,
    ),
    Cost("shampoo", "inversion", lambda s: s.inputs**3 + s.outputs**3, _shampoo_roots),
    Cost(
        "shampoo",
        "step",
        lambda s: s.elements * (s.inputs + s.outputs),
        _shampoo_products,
    ),
    Cost(
        "shampoo",
        "storage",
        lambda s: s.inputs**2 + s.outputs**2,
        lambda s: _squares(s.inputs, s.outputs),
    ),
    *_kfac_costs(dense=True),
)


# --- measurements -----------------------------------------------------------------------------

Calls = dict[str, Callable[[], object]]


class ProcessorTimer:
    """Measures processor time, which other programs on the machine change less than wall time."""

    def __call__(self, run: Callable[[], object], number: int) -> float:
        start = time.process_time()
        for _ in range(number):
            run()
        return (time.process_time() - start) / number


def _built(
    method: str,
    shape: Shape,
    device: torch.device,
    stats_every: int = NEVER,
    inverse_every: int = NEVER,
) -> torch.optim.Optimizer:
    """An optimizer of a layer with a gradient, after its first step."""
    layer = shape.layer()
    module = layer.module.to(device)
    # Matrices of such gradients have eigenvalues of order 1, whatever the size of the layer.
    scale = 1.0 / math.sqrt(shape.fan_in)
    module.weight.grad = scale * torch.randn_like(module.weight)
    settings = replace(SETTINGS, stats_every=stats_every, inverse_every=inverse_every)
    if method == "shampoo":
        optimizer: torch.optim.Optimizer = Shampoo(module.parameters(), settings)
    elif method == "kfac":
        kfac = KFAC(module, [layer], settings)
        kfac.take([_statistics(layer, shape, device)])
        optimizer = kfac
    else:
        task = NormalTask("cost", "cost", lambda: module)
        optimizer = METHODS[method].build(module, task, settings).optimizer
    optimizer.step()
    return optimizer


def _statistics(
    layer: MatrixLayer, shape: Shape, device: torch.device
) -> tuple[MatrixLayer, Tensor, Tensor]:
    patches = layer.patches(shape.batch().to(device))
    slopes = torch.randn(shape.samples, patches.shape[1], shape.outputs, device=device)
    return layer, patches, slopes


def measure(
    shape: Shape, method: str, timer: Timer, plan: Plan, device: torch.device
) -> dict[str, float]:
    """Seconds of each phase, and the bytes of ``storage``.

    What comes on top of a step is the difference of two measurements, interleaved.
    """
    plain = _built(method, shape, device)
    calls: Calls = {"step": plain.step}
    extra: Calls = {}
    if method == "kfac":
        assert isinstance(plain, KFAC)
        statistics = _statistics(plain.layers[0], shape, device)
        calls["statistics"] = lambda: plain.take([statistics])
        inputs = shape.batch().to(device).requires_grad_()
        outputs = shape.layer().module.to(device)(inputs)
        slopes = torch.ones_like(outputs)
        calls["pass"] = lambda: torch.autograd.grad(outputs, inputs, slopes, retain_graph=True)
    elif method != "adam":
        extra["statistics"] = _built(method, shape, device, stats_every=1).step
    if method != "adam":
        extra["inversion"] = _built(method, shape, device, inverse_every=1).step
    entrants = {name: Entrant(run) for name, run in (calls | extra).items()}
    time_interleaved(list(entrants.values()), timer, plan)
    best = {name: median(entrant.samples) for name, entrant in entrants.items()}
    found = {name: best[name] for name in calls}
    found |= {name: best[name] - best["step"] for name in extra}
    momentum = 4 * shape.elements if method != "adam" else 0
    found["storage"] = state_bytes(plain) - momentum
    return found


def machine_rates(timer: Timer, plan: Plan, device: torch.device) -> Rates:
    """Measured by copies beyond the caches and by products of large matrices."""
    source = torch.ones(16 * 2**20, device=device)
    target = torch.empty_like(source)
    matrix = torch.randn(1024, 1024, device=device)
    copies, products = Entrant(lambda: target.copy_(source)), Entrant(lambda: matrix @ matrix)
    time_interleaved([copies, products], timer, plan)
    return Rates(
        bytes=2 * FLOAT * source.numel() / median(copies.samples),
        operations=2 * len(matrix) ** 3 / median(products.samples),
    )


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log(value) over log(size), by least squares; NaN if a value is not positive."""
    if min(values) <= 0.0 or len(sizes) < 2:
        return math.nan
    x, y = ([math.log(value) for value in some] for some in (sizes, values))
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    products = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return products / sum((a - mean_x) ** 2 for a in x)
