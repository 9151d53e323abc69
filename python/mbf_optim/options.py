"""The options of a parameter group: which values are allowed, and what a step derives from them."""

from __future__ import annotations

import math
import sys
from operator import is_
from typing import Any

import torch
from torch import Tensor

from .layers import CONV_KINDS, FC_KINDS
from .schedule import Schedule

# As torch keeps it: the options of a group by name, beside its "params".
ParamGroup = dict[str, Any]

# The options of a group, in the order of the constructor.
OPTIONS = (
    "lr",
    "momentum",
    "beta",
    "damping",
    "weight_decay",
    "stats_every",
    "inverse_every",
    "conv",
    "fc",
    "max_block",
    "power",
    "early_refresh",
    "inverse_dtype",
    "graft",
    "nesterov",
    "damping_scale",
    "stagger",
    "maximize",
)

# What they are by default with ``graft``: docs/optimizer.md has the measurements.
GRAFT_CONV = "filter"
GRAFT_BLOCK = 128  # the widest piece that the fused kernels of every device serve
GRAFT_LINEAR_POWER = -0.5
GRAFT_DAMPING = 0.3  # of inverses
GRAFT_ROOT_DAMPING = 1e-3  # of inverse roots
PAPER_DAMPING = 3e-3

_LARGEST = sys.float_info.max
_OPTION_SET = frozenset(OPTIONS)

# Those that shape the state. They cannot change once a group has some.
SHAPING_OPTIONS = ("conv", "fc", "max_block", "power", "graft", "inverse_dtype")

# --- checking ---------------------------------------------------------------------------------


def _check_number(name: str, value: object, low: float, high: float, wanted: str) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
    if not (low <= value < high):
        raise ValueError(f"{name}: expected {wanted}, got {value}")


def _check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(map(repr, choices))}, got {value!r}")


def _check_count(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}: expected 1 or more, got {value}")


def _number_in(name: str, value: object) -> object:
    """What a tensor with one value holds; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    if value.numel() != 1:
        raise ValueError(f"{name}: expected a tensor with one value, got {value.numel()}")
    return float(value)


def check_learning_rate(lr: object) -> None:
    _check_number("lr", _number_in("lr", lr), 0.0, math.inf, "a finite number >= 0")


def check_momentum(momentum: object) -> None:
    if isinstance(momentum, Tensor) and _reading_waits(momentum):
        raise ValueError(
            "momentum: expected a number or a tensor on the CPU, where every step can read it "
            f"without waiting, got a tensor on {momentum.device}"
        )
    _check_number("momentum", _number_in("momentum", momentum), 0.0, 1.0, "a number in [0, 1)")


def with_defaults(options: dict[str, Any]) -> dict[str, Any]:
    """The options with values in place of what stands for the default.

    Without ``graft`` that is the paper's, with it the one that trains best at Adam's price.
    """
    graft = options["graft"] is not None
    settled = dict(options)
    if options["conv"] is None:
        settled["conv"] = GRAFT_CONV if graft else "kernel"
    if options["nesterov"] is None:
        settled["nesterov"] = graft
    return settled


def check_options(options: dict[str, Any]) -> None:
    """Raises for the first option with a value that is not allowed."""
    check_learning_rate(options["lr"])
    check_momentum(options["momentum"])
    _check_number("beta", options["beta"], 0.0, 1.0, "a number in [0, 1)")
    if options["damping"] is not None:
        _check_number("damping", options["damping"], 0.0, math.inf, "a finite number >= 0")
    _check_number("weight_decay", options["weight_decay"], 0.0, math.inf, "a finite number >= 0")
    for name in ("stats_every", "inverse_every"):
        _check_count(name, options[name])
    if options["max_block"] not in (None, "auto"):
        _check_count("max_block", options["max_block"])
    if options["power"] is not None:
        _check_number("power", options["power"], -_LARGEST, 0.0, "a finite number below 0")
    _check_choice("conv", options["conv"], CONV_KINDS)
    _check_choice("fc", options["fc"], FC_KINDS)
    _check_choice("graft", options["graft"], (None, "adam"))
    _check_choice("damping_scale", options["damping_scale"], (None, "absolute", "layer"))
    _check_choice("inverse_dtype", options["inverse_dtype"], (torch.float32, torch.bfloat16))
    for name in ("early_refresh", "nesterov", "stagger", "maximize"):
        if not isinstance(options[name], bool):  # 1 equals True, and torch's kernels refuse it
            raise ValueError(f"{name}: expected one of True, False, got {options[name]!r}")


class OptionWatch:
    """Notices when a user changes the options of a group.

    At every step it compares the values with those it saw last, and checks them if any is another
    object: 2.0 equals 2, and is not allowed where 2 is. The learning rate, which schedulers change
    all the time, is checked by itself.
    """

    def __init__(self, group: ParamGroup) -> None:
        self._seen: list[Any] = []  # the values of all options but lr
        self._graft = group.get("graft")  # of which other options have their defaults
        self._shape: dict[str, Any] = {}  # what the state was made with

    def check(self, index: int, group: ParamGroup, has_state: bool) -> None:
        """Raises if the ``index``-th group has an option that cannot be stepped with."""
        missing = _OPTION_SET - group.keys()
        if missing:
            raise ValueError(f"group {index}: the options {sorted(missing)} are missing")
        values, lr = [group[name] for name in OPTIONS[1:]], group["lr"]
        known = len(values) == len(self._seen) and all(map(is_, values, self._seen))
        try:
            if not known:
                check_options({**group, "lr": 0.0})
            elif isinstance(group["momentum"], Tensor):  # may have been written in place
                check_momentum(group["momentum"])
            if not isinstance(lr, Tensor) or not _reading_waits(lr):
                check_learning_rate(lr)
        except (TypeError, ValueError) as error:
            raise type(error)(f"group {index}: {error}") from None
        if known:
            return
        if group["graft"] != self._graft:
            raise ValueError(
                f"group {index}: graft was {self._graft!r} when the group was made, and is now "
                f"{group['graft']!r}; the defaults of other options depend on it, so make a new "
                "optimizer to change it"
            )
        shape = shape_of(group)
        for name, before in self._shape.items():
            if has_state and shape[name] != before:
                raise ValueError(
                    f"group {index}: {name} was {_shown(before)} when the state was made, and is "
                    f"now {_shown(shape[name])}; make a new optimizer to change it"
                )
        self._seen = values

    def made_state(self, group: ParamGroup) -> None:
        """Remembers the options that the state of a group has its shape from."""
        self._shape = shape_of(group)


# --- resolving --------------------------------------------------------------------------------


def learning_rate_of(group: ParamGroup) -> float | Tensor:
    """The learning rate as a float, or as a tensor if reading it would wait for a device."""
    lr = group["lr"]
    return lr if isinstance(lr, Tensor) and _reading_waits(lr) else float(lr)


def signed(group: ParamGroup, value: Any) -> Any:
    """A learning rate or weight decay; to maximize, both are negative and their product is not."""
    return -value if group["maximize"] else value


def momentum_of(group: ParamGroup) -> float:
    """The momentum of a step. Schedulers whose limits are tensors set it to a tensor."""
    return float(group["momentum"])


def _reading_waits(tensor: Tensor) -> bool:
    return tensor.device.type != "cpu"


def max_block_of(group: ParamGroup) -> int | None:
    """The most columns of a piece; None if rows stay whole."""
    max_block: int | str | None = group["max_block"]
    if not isinstance(max_block, str):
        return max_block
    return None if group["graft"] is None else GRAFT_BLOCK


def power_of(group: ParamGroup, family: str) -> float:
    """The power of ``G + damping I`` in layers of this family."""
    if family not in ("conv", "linear"):
        return -1.0
    if group["power"] is not None:
        return float(group["power"])
    shared_rows = family == "linear" and group["fc"] == "average"
    return GRAFT_LINEAR_POWER if group["graft"] is not None and shared_rows else -1.0


def damping_of(group: ParamGroup, power: float = -1.0) -> tuple[float, bool]:
    """The damping, and whether it is relative: in units of each layer's mean diagonal of ``G``."""
    graft = group["graft"] is not None
    damping, scale = group["damping"], group["damping_scale"]
    if damping is None:
        damping = PAPER_DAMPING
        if graft:
            damping = GRAFT_DAMPING if power == -1.0 else GRAFT_ROOT_DAMPING
    return damping, graft if scale is None else scale == "layer"


def shape_of(group: ParamGroup) -> dict[str, Any]:
    """What :data:`SHAPING_OPTIONS` mean, by name: several values can mean the same."""
    return {name: group[name] for name in SHAPING_OPTIONS} | {
        "max_block": max_block_of(group),
        "power": tuple(power_of(group, family) for family in ("conv", "linear")),
    }


def _shown(value: Any) -> str:
    """A value of :func:`shape_of` in a message."""
    if not isinstance(value, tuple):
        return repr(value)
    of_convolutions, of_linear = value
    if of_convolutions == of_linear:
        return repr(of_linear)
    return f"{of_convolutions!r} in convolutions and {of_linear!r} in linear layers"


def schedule_of(group: ParamGroup, warm: bool, stagger: bool) -> Schedule:
    """The schedule of a layer; ``warm`` says whether it had a warm start."""
    early = group["early_refresh"] and not warm
    return Schedule(group["stats_every"], group["inverse_every"], early, stagger)


def momentum_correction(momentum: float, k: int, nesterov: bool = False) -> float:
    """The factor that turns the heavy-ball momentum of step ``k`` into an unbiased average.

    Nesterov's momentum has the weight of one gradient more.
    """
    return (1.0 - momentum) / (1.0 - momentum ** (k + nesterov))
