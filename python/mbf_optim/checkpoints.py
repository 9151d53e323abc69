"""What a saved state must look like to be loaded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .options import OPTIONS, SHAPING_OPTIONS, ParamGroup, check_options, shape_of

# The state of parameters, as engines export and load it.
States = dict[Tensor, dict[str, Any]]

# The names that engines use in a parameter's state. Others belong to whoever put them there.
OWN_NAMES = {
    *("step", "warm_started", "momentum_buffer", "target_norm"),
    *("stats", "weights", "inverse", "second_moment"),
    *("exp_avg", "exp_avg_sq", "momentum"),
}

# Saved beside "state" and "param_groups". Checkpoints from before it was introduced have none.
FORMAT_KEY = "mbf_format"
FORMAT = 2

# A state can only be loaded where these are the same. Inverses may be saved in one dtype and loaded
# in another.
_MUST_AGREE = tuple(name for name in SHAPING_OPTIONS if name != "inverse_dtype")

# What versions did that had no such option.
_OF_OLDER_VERSIONS = {"power": -1.0, "nesterov": False}


def saved_form(group: dict[str, Any]) -> dict[str, Any]:
    """A group for a checkpoint: of plain values only, as torch's checkpoint tools want them."""
    return {**group, "inverse_dtype": str(group["inverse_dtype"]).removeprefix("torch.")}


def states_by_parameter(state_dict: Mapping[str, Any], groups: Sequence[ParamGroup]) -> States:
    """The state of each parameter of ``groups``; raises if the saved groups do not fit them."""
    _check_form(state_dict)
    saved_groups = state_dict["param_groups"]
    sizes = [len(group["params"]) for group in groups]
    saved_sizes = [len(group["params"]) for group in saved_groups]
    if sizes != saved_sizes:
        raise ValueError(
            f"state_dict: expected parameter groups of {sizes} tensors, got {saved_sizes}"
        )
    for i, (group, saved) in enumerate(zip(groups, saved_groups, strict=True)):
        whole = {**group, **_OF_OLDER_VERSIONS, **saved}
        wanted, found = shape_of(group), shape_of(whole)
        for name in _MUST_AGREE:
            if found[name] != wanted[name]:
                raise ValueError(
                    f"state_dict: group {i} was saved with {name}={whole[name]!r}, this "
                    f"optimizer has {name}={group[name]!r}"
                )
    state = state_dict["state"]
    states: States = {}
    for group, saved in zip(groups, saved_groups, strict=True):
        for param, i in zip(group["params"], saved["params"], strict=True):
            if state.get(i):  # torch's tools leave an empty entry where there is no state
                states[param] = _upgraded(state[i], saved)
    return states


def _upgraded(entry: Any, group: ParamGroup) -> Any:
    """An entry of the first format in the present one: elementwise state had no ``weights``."""
    if not isinstance(entry, dict) or "exp_avg" not in entry or "weights" in entry:
        return entry
    if not {"step", "momentum"} <= entry.keys() or not {"beta", "momentum"} <= group.keys():
        return entry
    momentum = group["momentum"] if entry["momentum"] is None else entry["momentum"]
    return {**entry, "weights": 1.0 - group["beta"] ** entry["step"], "momentum": momentum}


def not_ours(states: States) -> States:
    """What others have put beside our own state of each parameter."""
    return {
        param: others
        for param, entry in states.items()
        if (others := {name: v for name, v in entry.items() if name not in OWN_NAMES})
    }


def of_no_parameter(state_dict: Mapping[str, Any]) -> dict[Any, Any]:
    """The entries of a checkpoint's state that belong to none of its parameters."""
    known = {i for group in state_dict["param_groups"] for i in group["params"]}
    return {key: value for key, value in state_dict["state"].items() if key not in known}


def _check_form(state_dict: Mapping[str, Any]) -> None:
    """Raises unless this has the outer form of an optimizer's checkpoint."""
    for key, kind in (("state", Mapping), ("param_groups", Sequence)):
        if not isinstance(state_dict.get(key), kind):
            have = sorted(map(str, state_dict))
            raise ValueError(f"state_dict: expected 'state' and 'param_groups', got {have}")
    for i, group in enumerate(state_dict["param_groups"]):
        if not isinstance(group, Mapping) or not isinstance(group.get("params"), Sequence):
            raise ValueError(f"state_dict: group {i} is not a dict with 'params'")
    version = state_dict.get(FORMAT_KEY, FORMAT)
    if not isinstance(version, int) or not 1 <= version <= FORMAT:
        raise ValueError(
            f"state_dict: its format is {version!r}, this version of mbf_optim reads up to "
            f"{FORMAT}; it was saved by a newer one"
        )


def merged_groups(
    state_dict: Mapping[str, Any], groups: Sequence[ParamGroup]
) -> list[dict[str, Any]]:
    """The saved groups, complete and with every option checked.

    An option that a group was saved without, by an earlier version, has the value that this version
    stepped with, if there was one, and else keeps its present one. So does ``inverse_dtype``: it is
    a choice of the present run.
    """
    merged = []
    for i, (saved, group) in enumerate(zip(state_dict["param_groups"], groups, strict=True)):
        options = {name: group[name] for name in OPTIONS} | _OF_OLDER_VERSIONS
        whole = {**options, **saved, "inverse_dtype": group["inverse_dtype"]}
        try:
            check_options(whole)
        except (TypeError, ValueError) as error:
            raise ValueError(f"state_dict: group {i}: {error}") from error
        merged.append(whole)
    return merged


def check_entry(
    name: str,
    saved: object,
    shapes: Mapping[str, Sequence[tuple[int, ...]]],
    scalars: Sequence[str] = (),
) -> None:
    """Raises unless a parameter's saved state has all of these.

    Args:
        shapes: the shapes of its tensors by key, each with one or more that are allowed.
        scalars: the keys of its numbers, plain or in tensors.
    """
    keys = {*scalars, *shapes}
    if not isinstance(saved, Mapping) or not keys <= saved.keys():
        have = sorted(map(str, saved)) if isinstance(saved, Mapping) else type(saved).__name__
        raise ValueError(f"state of {name}: expected {sorted(keys)}, got {have}")
    for key, allowed in shapes.items():
        value = saved[key]
        if not isinstance(value, Tensor) or not value.is_floating_point():
            kind = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise ValueError(f"state of {name}: expected {key!r} to be a float tensor, got {kind}")
        if tuple(value.shape) not in allowed:
            raise ValueError(
                f"state of {name}: expected {key!r} of shape {' or '.join(map(str, allowed))}, got "
                f"{tuple(value.shape)}"
            )
    for key in scalars:
        _check_scalar(name, key, saved[key])


def _check_scalar(name: str, key: str, value: object) -> None:
    if isinstance(value, Tensor):
        fine = value.numel() == 1 and not value.is_complex()
    else:
        fine = isinstance(value, (bool, int, float))
    if not fine or not on_host(value) >= 0.0:
        raise ValueError(f"state of {name}: expected {key!r} to be one number >= 0, got {value!r}")


def copied(value: Any) -> Any:
    """A value of a state for a checkpoint."""
    return value.detach().clone() if isinstance(value, Tensor) else value


def on_host(value: Any) -> float:
    """A number of a saved state, plain or in a tensor."""
    return float(value.item() if isinstance(value, torch.Tensor) else value)
