"""Hyper-parameters of the paper: its grids, its best points, and what all runs share.

Tables 5 to 8 of appendix D. On autoencoders the second value is the damping, on CNNs the weight
decay. Where one learning rate of KFAC's grid occurs twice in table 5, the sequence is continued,
since the best point for FACES would lie outside otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

# The variants of MBF are tuned on the grid of MBF, as in the paper.
GRID_OF = {
    "mbf-row": "mbf",
    "mbf-true": "mbf",
    "mbf-cnn-avg": "mbf",
    "mbf-filter": "mbf",
    "mbf-generic": "mbf",
    "mbf-exact": "mbf",
}


@dataclass(frozen=True)
class Axes:
    """The values that a grid combines; a method without a second value has ``(None,)``."""

    rates: tuple[float, ...]
    seconds: tuple[float | None, ...]


_DAMPINGS_MBF = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2)
AUTOENCODER_AXES = {
    "sgd-m": Axes((1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2), (None,)),
    "adam": Axes((1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), (1e-8, 1e-4, 1e-2)),
    "shampoo": Axes((1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3), (1e-4, 3e-4, 1e-3, 3e-3, 1e-2)),
    "mbf": Axes((1e-7, 3e-7, 1e-6, 3e-6, 1e-5, 3e-5, 1e-4), _DAMPINGS_MBF),
    "kfac": Axes(
        (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1), (1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
    ),
    # Ours, not in the paper: Adam's learning rates, all else as it is by default.
    "mbf-scale-free": Axes((1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2), (None,)),
}

_DECAYS = (1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0, 10.0)
_ADAM_RATES = (1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2)
CNN_AXES = {
    "sgd-m": Axes((3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0), _DECAYS),
    "adam": Axes(_ADAM_RATES, _DECAYS),
    "shampoo": Axes((3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1), _DECAYS),
    "mbf": Axes((1e-6, 3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3), _DECAYS),
    "kfac": Axes((3e-6, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2), _DECAYS),
    "mbf-scale-free": Axes(_ADAM_RATES, _DECAYS),
}

# (learning rate, damping)
BEST_AUTOENCODER: dict[str, dict[str, tuple[float, float | None]]] = {
    "mnist": {
        "mbf": (1e-5, 3e-4),
        "kfac": (3e-3, 3e-1),
        "shampoo": (3e-4, 3e-4),
        "adam": (3e-4, 1e-4),
        "sgd-m": (3e-3, None),
        "mbf-scale-free": (1e-3, None),
    },
    "faces": {
        "mbf": (1e-6, 3e-3),
        "kfac": (1e-1, 10.0),
        "shampoo": (3e-4, 3e-4),
        "adam": (1e-4, 1e-4),
        "sgd-m": (1e-3, None),
        "mbf-scale-free": (1e-3, None),
    },
    "curves": {
        "mbf": (1e-5, 3e-4),
        "kfac": (1e-2, 1.0),
        "shampoo": (1e-3, 3e-3),
        "adam": (3e-4, 1e-4),
        "sgd-m": (1e-2, None),
        "mbf-scale-free": (1e-3, None),
    },
}
# (learning rate, weight decay)
BEST_CNN: dict[str, dict[str, tuple[float, float | None]]] = {
    "resnet32": {
        "mbf": (1e-4, 3.0),
        "kfac": (3e-3, 1e-1),
        "shampoo": (1e-2, 1e-1),
        "adam": (3e-3, 1e-1),
        "sgd-m": (1e-1, 1e-2),
        "mbf-scale-free": (3e-3, 1e-1),
    },
    "vgg16": {
        "mbf": (3e-5, 10.0),
        "kfac": (1e-3, 3e-1),
        "shampoo": (1e-3, 3e-1),
        "adam": (3e-5, 10.0),
        "sgd-m": (3e-2, 1e-2),
        "mbf-scale-free": (3e-5, 10.0),
    },
    "vgg11": {
        "mbf": (1e-3, 3e-1),
        "kfac": (3e-3, 1e-1),
        "shampoo": (3e-3, 1e-1),
        "adam": (3e-4, 1.0),
        "sgd-m": (3e-2, 1e-2),
        "mbf-scale-free": (3e-4, 1.0),
    },
}
# The paper does not train the Simple CNN with all methods: values of the other CNN without
# residual connections serve as a start.
BEST_CNN["simple-cnn"] = BEST_CNN["vgg11"]

# Damping on CNNs is fixed, not tuned.
CNN_DAMPING = {"adam": 1e-8, "kfac": 0.03, "shampoo": 0.01, "mbf": 0.003}

# T1 and T2 of methods that do not take those of the problem.
OWN_FREQUENCIES = {"mbf-scale-free": (10, 100)}  # MBF's defaults


@dataclass(frozen=True)
class Lengths:
    """Epochs of a run and the epochs between two decays of the learning rate."""

    epochs: int
    decay_every: int


_FIRST_ORDER = Lengths(200, 40)
CNN_LENGTHS = {
    "resnet32": {"first": _FIRST_ORDER, "mbf": Lengths(200, 60), "kronecker": Lengths(100, 80)},
    "vgg16": {"first": _FIRST_ORDER, "mbf": Lengths(150, 50), "kronecker": Lengths(100, 60)},
}
CNN_LENGTHS["vgg11"] = CNN_LENGTHS["simple-cnn"] = CNN_LENGTHS["vgg16"]

AUTOENCODER_SECONDS = {"mnist": 500.0, "faces": 2000.0, "curves": 500.0}


def grid_name(method: str) -> str:
    """The name of the method whose grid and best points a method uses."""
    return GRID_OF.get(method, method)


def cnn_lengths(network: str, method: str) -> Lengths:
    """How long the paper trains a network with a method."""
    if method.startswith("mbf"):
        kind = "mbf"
    else:
        kind = "kronecker" if method in ("kfac", "shampoo", "bdf") else "first"
    return CNN_LENGTHS[network][kind]
