"""What a saved state must look like to be loaded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from .options import ParamGroup

# The state of parameters, as engines export and load it.
States = dict[Tensor, dict[str, Any]]

# What every parameter's saved state says about its layer.
COUNTS = ("step", "warm_started")

# The options that shape the state: it can only be loaded where they are the same. Inverses may be
# saved in one dtype and loaded in another, so inverse_dtype is not among them.
_SHAPING_OPTIONS = ("conv", "fc", "max_block", "graft")


def states_by_parameter(state_dict: dict[str, Any], groups: Sequence[ParamGroup]) -> States:
    """The state of each parameter of ``groups``; raises if the saved groups do not fit them."""
    saved_groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"state_dict: expected parameter groups of {sizes} tensors, got {saved_sizes}"
        )
    for i, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        for name in _SHAPING_OPTIONS:
            if name in saved and saved[name] != group[name]:
                raise ValueError(
                    f"state_dict: group {i} was saved with {name}={saved[name]!r}, this "
                    f"optimizer has {name}={group[name]!r}"
                )
    ids = [p for group in saved_groups for p in group["params"]]
    params = [p for group in groups for p in group["params"]]
    state = state_dict["state"]
    return {p: state[i] for i, p in zip(ids, params, strict=True) if i in state}


def check_entry(
    name: str,
    saved: dict[str, Any] | None,
    shapes: dict[str, tuple[int, ...]],
    scalars: tuple[str, ...] = (),
) -> None:
    """Raises unless a parameter's saved state has the counts of its layer and all of these.

    Args:
        shapes: the shapes of its tensors by key.
        scalars: the keys of its plain Python values.
    """
    keys = {*COUNTS, *scalars, *shapes}
    if saved is None or not keys <= saved.keys():
        have = sorted(saved) if saved else "nothing"
        raise ValueError(f"state of {name}: expected {sorted(keys)}, got {have}")
    for key, shape in shapes.items():
        if tuple(saved[key].shape) != shape:
            raise ValueError(
                f"state of {name}: expected {key!r} of shape {shape}, got {tuple(saved[key].shape)}"
            )
