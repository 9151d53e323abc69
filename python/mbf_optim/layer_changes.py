"""How layers change after the optimizer was made.

Users edit ``param_groups``: a parameter is replaced by a larger one, removed, or appended. A weight
or its bias may be frozen, so that the two cannot share a layer. A checkpoint may come from an
optimizer that saw other layers in the same parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from .checkpoints import States
from .layers import Layer, layer_by_shape


def follow(
    layers: Sequence[Layer],
    before: Sequence[Tensor],
    now: Sequence[Tensor],
    elsewhere: Sequence[Layer] = (),
) -> list[Layer]:
    """The layers of a parameter group whose list of parameters was edited.

    A parameter in the place of one that is gone takes over its role, if it has as many dimensions.
    One that comes from ``elsewhere``, another group or an earlier list, keeps the role it had
    there. Any other new parameter is told by its shape. Layers whose parameters are all still
    there stay the same objects.
    """
    old, new = {id(p) for p in before}, {id(p) for p in now}
    successors = {
        id(gone): come
        for gone, come in zip(before, now, strict=False)
        if id(gone) not in new and id(come) not in old and gone.dim() == come.dim()
    }

    def present(param: Tensor | None) -> Tensor | None:
        if param is None or id(param) in new:
            return param
        return successors.get(id(param))

    followed: list[Layer] = []
    for layer in layers:
        weight, bias = present(layer.weight), present(layer.bias)
        if weight is layer.weight and bias is layer.bias:
            followed.append(layer)
        elif weight is None:
            if bias is not None:
                followed.append(layer_by_shape(f"bias of {layer.name}", bias))
        else:
            # Into how many groups another number of channels is cut, the parameter does not show.
            groups = layer.groups if weight.shape == layer.weight.shape else 1
            layer = replace(layer, weight=weight, bias=bias, groups=groups)
            fits = bias is None or bias.shape == weight.shape[:1]
            followed += [layer] if fits else divide(layer)
    known = {id(p) for layer in followed for p in layer.parameters}
    told = [layer_by_shape(f"parameter {i}", p) for i, p in enumerate(now) if id(p) not in known]
    return followed + as_elsewhere(told, elsewhere)


def as_elsewhere(layers: Sequence[Layer], elsewhere: Sequence[Layer]) -> list[Layer]:
    """``layers``, with single parameters in the roles that they had ``elsewhere``.

    A weight and a bias that were joined there are joined again if both are here.
    """
    single = {id(layer.weight): layer for layer in layers if layer.bias is None}
    taken: set[int] = set()
    kept = []
    for role in elsewhere:
        if id(role.weight) in single.keys() - taken:
            bias = role.bias if role.bias is not None and id(role.bias) in single else None
            role = replace(role, name=single[id(role.weight)].name, bias=bias)
            taken |= {id(p) for p in role.parameters}
            kept.append(role)
    return [layer for layer in layers if id(layer.weight) not in taken] + kept


def divide(layer: Layer) -> list[Layer]:
    """A layer without its joined bias, and the bias as a layer of its own."""
    if layer.bias is None:
        return [layer]
    bias = layer_by_shape(f"bias of {layer.name}", layer.bias)
    return [replace(layer, bias=None), bias]


def as_saved(layers: Sequence[Layer], saved: States, graft: bool) -> list[Layer]:
    """The same parameters as the layers that these states belong to.

    What a state holds shows how its parameter was stepped: elementwise or with a matrix, and
    whether a bias was joined to its weight. A weight and a bias of which only one has state, or one
    is frozen and none has state yet, are layers of their own.
    """
    joined: list[Layer] = []
    for layer in layers:
        for part in divide(layer) if _are_apart(layer, saved) else [layer]:
            last = joined[-1] if joined else None
            if last is not None and _joins(last, part, saved):
                joined[-1] = replace(last, bias=part.weight)
            else:
                joined.append(_of_saved_family(part, saved, graft))
    return joined


def _are_apart(layer: Layer, saved: States) -> bool:
    weight, bias = layer.weight, layer.bias
    if bias is None:
        return False
    if weight in saved or bias in saved:
        return (weight in saved) != (bias in saved) or _has_own_state(saved[bias])
    return weight.requires_grad != bias.requires_grad


def _has_own_state(entry: object) -> bool:
    """Whether this is the saved state of a whole layer, not that of a joined bias."""
    return isinstance(entry, dict) and ("stats" in entry or "exp_avg" in entry)


def _joins(layer: Layer, next_layer: Layer, saved: States) -> bool:
    """Whether ``next_layer`` is a vector that was saved as the joined bias of ``layer``."""
    bias = next_layer.weight
    entry = saved.get(bias)
    return (
        layer.family == "linear"
        and layer.bias is None
        and next_layer.bias is None
        and bias.shape == layer.weight.shape[:1]
        and isinstance(entry, dict)
        and "momentum_buffer" in entry
        and not _has_own_state(entry)
    )


def _of_saved_family(layer: Layer, saved: States, graft: bool) -> Layer:
    entry = saved.get(layer.weight)
    elementwise = layer.family == "adam" or (layer.family == "diagonal" and graft)
    if isinstance(entry, dict) and "exp_avg" in entry and not elementwise:
        return replace(layer, family="adam")
    if isinstance(entry, dict) and "stats" in entry and layer.family == "adam":
        return layer_by_shape(layer.name, layer.weight)
    return layer


def is_same(one: Layer, other: Layer) -> bool:
    """Whether two layers are of the same parameters and stepped alike."""
    return one.weight is other.weight and one.bias is other.bias and one.family == other.family
