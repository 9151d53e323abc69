"""The Python overhead of a step: its time without the tensor operations in it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from ..common.timing import CpuTimer
from .contenders import Contender
from .gradients import GradientSets
from .networks import Network
from .runner import Entrant

# Functions that only ask about a tensor or set a mode; their time counts as overhead.
QUESTIONS = {
    *("__get__", "__len__", "_set_grad_enabled", "data_ptr", "dim", "element_size"),
    *("is_complex", "is_contiguous", "is_floating_point", "is_inference", "numel"),
    *("size", "stride"),
}
CYCLES = 3


class TensorTime(TorchFunctionMode):
    """Adds up the seconds inside torch's operations, including our operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        start = time.perf_counter()
        result = func(*args, **(kwargs or {}))
        seconds = time.perf_counter() - start
        if getattr(func, "__name__", "") not in QUESTIONS:
            self.seconds += seconds
        return result


def python_overhead(network: Network, contender: Contender) -> float:
    """Seconds per step outside tensor operations, averaged over whole cycles.

    Cycles in which whole steps are timed alternate with cycles in which only the operations inside
    are timed, so that the time of the instrument itself enters neither figure.
    """
    model = network.build()
    gradients = GradientSets(model, torch.device("cpu"))
    entrant = Entrant(contender, contender.form, model, gradients, CpuTimer())
    cycle = contender.form.cycle
    entrant.take(entrant.warm_up_left)
    whole: list[list[float]] = [[] for _ in range(len(cycle))]
    inside: list[list[float]] = [[] for _ in range(len(cycle))]
    for _ in range(CYCLES):
        for _ in range(len(cycle)):
            whole[cycle.place(entrant.step + 1)].append(entrant.take(1))
        for _ in range(len(cycle)):
            with TensorTime() as instrument:
                entrant.take(1)
            inside[cycle.place(entrant.step)].append(instrument.seconds)
    return sum(
        weight * (statistics.median(step) - statistics.median(tensors))
        for weight, step, tensors in zip(cycle.weights, whole, inside, strict=True)
    )
