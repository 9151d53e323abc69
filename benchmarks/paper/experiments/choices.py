"""What the user can choose in several experiments: problem, budget and hyper-parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from ..problems import (
    AUTOENCODER_SETS,
    IMAGE_SETS,
    NETWORKS,
    Problem,
    autoencoder_problem,
    cnn_problem,
)
from ..settings import Settings
from ..store import StoreError
from ..tuning import UntunedError, settings_at, tuned_point

Overrides = tuple[float | None, float | None, float | None]  # lr, damping, weight decay


any_network_option = click.option(
    "--network",
    type=click.Choice(["autoencoder", *NETWORKS]),
    default="autoencoder",
    show_default=True,
    help="The network.",
)
any_data_option = click.option(
    "--data",
    type=click.Choice(sorted({*AUTOENCODER_SETS, *IMAGE_SETS})),
    help="The data.  [default: mnist for the autoencoder, those of the paper for the others]",
)
batch_option = click.option(
    "--batch",
    type=click.IntRange(min=1),
    help="Batch size.  [default: 1000 for autoencoders, 128 for the others, as in the paper]",
)


examples_option = click.option(
    "--examples",
    type=click.IntRange(min=1),
    help="Training examples, from all over the set, with as large a part of the test examples.  "
    "[default: all]",
)


def words(*lines: str) -> tuple[tuple[str, ...], ...]:
    """The arguments in each line."""
    return tuple(tuple(line.split()) for line in lines)


def any_problem(network: str, data: str | None, folder: Path | None) -> Problem:
    """An autoencoder or another network on its data.

    Raises:
        DataError: the data is missing.
    """
    if network == "autoencoder":
        if data is not None and data not in AUTOENCODER_SETS:
            raise click.ClickException(
                f"--data: expected {', '.join(AUTOENCODER_SETS)} for an autoencoder, got {data}"
            )
        return autoencoder_problem(data or "mnist", folder)
    if data is not None and data not in IMAGE_SETS:
        raise click.ClickException(
            f"--data: expected {', '.join(IMAGE_SETS)} for {network}, got {data}"
        )
    return cnn_problem(network, data, folder)


def with_examples(problem: Problem, examples: int | None) -> Problem:
    """The problem with a part of its examples; None keeps all."""
    try:
        return problem.thinned(examples)
    except ValueError as error:
        raise click.ClickException(f"--examples: {error}") from error


def overrides_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """``--lr``, ``--damping`` and ``--weight-decay``, in place of tuned values."""
    for name, what in (
        ("--weight-decay", "weight decay"),
        ("--damping", "damping"),
        ("--lr", "learning rate"),
    ):
        option = click.option(
            name,
            type=click.FloatRange(min=0),
            help=f"The {what} of every optimizer.  [default: the best of the grid, or the paper's]",
        )
        command = option(command)
    return command


def tuned_settings(
    output: Path, problem: Problem, method: str, seed: int, overrides: Overrides
) -> Settings:
    """The settings of a run."""
    try:
        point, _ = tuned_point(output, problem, method)
    except (UntunedError, StoreError) as error:
        raise click.ClickException(str(error)) from error
    settings = settings_at(problem, method, point, seed)
    lr, damping, weight_decay = overrides
    return replace(
        settings,
        lr=settings.lr if lr is None else lr,
        damping=settings.damping if damping is None else damping,
        weight_decay=settings.weight_decay if weight_decay is None else weight_decay,
    )
