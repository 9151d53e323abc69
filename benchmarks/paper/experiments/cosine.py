"""How close directions come to those of BDF: the paper's algorithm 5 and figure 6."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

import torch
from torch import Tensor, nn

from ..baselines.layer_tape import MatrixLayer, matrix_layers
from ..methods import METHODS, Method
from ..problems import Problem
from ..settings import Settings

# Of algorithm 5; the statistics are updated and inverted at every step.
RATE = 0.01
DAMPING = 0.01
SETTINGS = Settings(lr=1.0, damping=DAMPING, stats_every=1, inverse_every=1)


def measure(
    problem: Problem,
    methods: Sequence[Method],
    settings: dict[str, Settings],
    *,
    steps: int,
    seed: int,
    device: torch.device,
    watch: Callable[[float], None] = lambda _: None,
) -> dict[str, list[list[float]]]:
    """The cosines of each method's directions with BDF's, along BDF's trajectory.

    Every method keeps momentum and statistics of its own, from gradients at BDF's iterates, and
    its parameters are set to BDF's before every step.

    Args:
        watch: is told the share of the steps that is done.

    Returns:
        for each method a list over steps of the cosines of the middle layers.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = problem.task.model().to(device)
    leader = METHODS["bdf"].build(model, problem.task, replace(SETTINGS, lr=RATE, seed=seed))
    leader.warm_start(problem.data.in_order(problem.data.train))
    followers = {}
    for method in methods:
        own = copy.deepcopy(model)
        stepper = method.build(own, problem.task, replace(settings[method.name], seed=seed))
        if method.warm:
            stepper.warm_start(problem.data.in_order(problem.data.train))
        followers[method.name] = stepper
    found: dict[str, list[list[float]]] = {method.name: [] for method in methods}
    for step, batch in enumerate(islice(_batches(problem, seed), steps), start=1):
        directions = {name: stepper.directions(*batch) for name, stepper in followers.items()}
        before = [param.detach().clone() for param in model.parameters()]
        leader.step(*batch)
        moved = [old - new.detach() for old, new in zip(before, model.parameters(), strict=True)]
        for name, stepper in followers.items():
            found[name].append(middle_cosines(model, moved, directions[name]))
            _follow(stepper.model, model)
        watch(step / steps)
    return found


def _batches(problem: Problem, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        yield from problem.data.epoch(problem.batch_size, generator)


@torch.no_grad()
def _follow(model: nn.Module, leader: nn.Module) -> None:
    for param, wanted in zip(model.parameters(), leader.parameters(), strict=True):
        param.copy_(wanted)


def middle_layers(model: nn.Module) -> list[MatrixLayer]:
    """All layers but the first and the last."""
    return matrix_layers(model)[1:-1]


def middle_cosines(
    model: nn.Module, one: Sequence[Tensor], other: Sequence[Tensor]
) -> list[float]:
    """``|p . d| / (||p|| ||d||)`` of the middle layers, each with its bias.

    Args:
        one, other: directions for every parameter of the model.
    """
    places = {id(param): place for place, param in enumerate(model.parameters())}
    found = []
    for layer in middle_layers(model):
        chosen = [places[id(param)] for param in layer.params]
        p, d = (
            torch.cat([directions[place].flatten().double() for place in chosen])
            for directions in (one, other)
        )
        found.append(float((p @ d).abs() / (p.norm() * d.norm())))
    return found
