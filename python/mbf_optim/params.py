"""The forms in which parameters may be given: a module, named or bare tensors, or groups."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from .layers import Layer, layers_of_module, layers_of_names, layers_of_tensors


def as_groups(params: Any) -> list[dict[str, Any]]:
    """Turns any form that the constructor takes into a list of groups."""
    if isinstance(params, Tensor):
        raise TypeError("params: expected a module or an iterable of parameters, got one tensor")
    if isinstance(params, nn.Module):
        return [{"params": params}]
    _check_ordered(params)
    entries = list(params)
    if not entries:
        raise ValueError("params: got an empty list of parameters")
    if isinstance(entries[0], dict):
        return entries
    return [{"params": entries}]


def read_params(given: dict[str, Any], count: int) -> tuple[list[Layer], list[Any]]:
    """The layers of a group, and its parameters in their order, named if the names are known.

    Args:
        count: parameters of the groups before this one, from which bare tensors are numbered.
    """
    if "params" not in given:
        raise ValueError(f"param_group: expected a key 'params', got {sorted(given)}")
    params = given["params"]
    if isinstance(params, nn.Module):
        named = list(params.named_parameters())
        if not named:
            raise ValueError(f"params: got a {type(params).__name__} with no parameters")
        return layers_of_module(params), named
    _check_ordered(params)
    entries: list[Any] = [params] if isinstance(params, Tensor) else list(params)
    pairs = [isinstance(entry, tuple) for entry in entries]
    for i, entry in enumerate(entries):
        _check_entry(i, entry)
        if pairs[i] != pairs[0]:
            raise ValueError(
                f"params: expected (name, tensor) pairs throughout or none, but number {i} "
                f"{'has' if pairs[i] else 'has no'} name, unlike those before it"
            )
    # torch warns of a parameter that is given twice, and goes on. It makes one layer.
    distinct: dict[int, Any] = {}
    for entry, pair in zip(entries, pairs, strict=True):
        distinct.setdefault(id(entry[1] if pair else entry), entry)
    if any(pairs):
        _check_names(list(distinct.values()))
        return layers_of_names(list(distinct.values())), entries
    return layers_of_tensors(distinct.values(), count), entries


def _check_ordered(params: Any) -> None:
    if isinstance(params, (set, frozenset)):
        raise TypeError(
            "params: expected a collection with an order, got a set; checkpoints go by the order"
        )


def _check_entry(i: int, entry: Any) -> None:
    pair = isinstance(entry, tuple) and len(entry) == 2
    if pair and isinstance(entry[0], str) and isinstance(entry[1], Tensor):
        return
    if isinstance(entry, nn.Module):
        raise TypeError(
            f"params: number {i} is a {type(entry).__name__} in a list; give a group for every "
            "module, as in [{'params': encoder}, {'params': decoder}]"
        )
    if not isinstance(entry, Tensor):
        raise TypeError(
            "params: expected tensors, (name, tensor) pairs or a module, but number "
            f"{i} is of type {type(entry).__name__}"
        )


def _check_names(named: list[tuple[str, Tensor]]) -> None:
    """Two parameters of one name could not be told apart: whose bias is a bias?"""
    first: dict[str, int] = {}
    for i, (name, _) in enumerate(named):
        if first.setdefault(name, i) != i:
            raise ValueError(
                f"params: expected distinct names, but numbers {first[name]} and {i} are both "
                f"{name!r}; name the parameters of several models apart, as in "
                "[(f'decoder.{name}', p) for name, p in decoder.named_parameters()], or put the "
                "models into one nn.ModuleDict"
            )


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


def check_parameter(name: str, param: Tensor) -> None:
    if param.is_complex():
        raise TypeError(
            f"{name}: expected a real parameter, got {param.dtype}; MBF has no complex form"
        )
    allowed = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
    if param.dtype not in allowed:
        names = ", ".join(map(dtype_name, allowed))
        raise TypeError(f"{name}: expected one of {names}, got {param.dtype}")
    if param.layout != torch.strided:
        raise TypeError(f"{name}: expected a dense parameter, got layout {param.layout}")


def check_inverse_dtype(name: str, param: Tensor, inverse_dtype: torch.dtype) -> None:
    if param.dtype == torch.float64 and inverse_dtype == torch.bfloat16:
        raise TypeError(
            f"inverse_dtype: {name} is float64, whose inverses are kept in float64; leave "
            "inverse_dtype at its default for it, or give it a parameter group of its own"
        )


def check_all_named(earlier: bool, named: bool) -> None:
    """Raises where only some groups have names, since torch keeps them for all or for none."""
    if earlier != named:
        has = {True: "names", False: "no names"}
        raise ValueError(
            f"params: the groups so far have {has[earlier]}, this one has {has[named]}; give "
            "(name, tensor) pairs or modules in every group, or tensors in every group"
        )
