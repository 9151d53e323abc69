"""Which layers share an engine, and which engine it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.nn.parameter import is_lazy

import mbf_kernels as mk
from mbf_kernels import MAX_FUSED_BLOCK

from .block_engine import BlockEngine
from .elementwise_engine import ElementwiseEngine
from .engine import Engine
from .layer_changes import is_same
from .layers import Layer
from .options import ParamGroup, max_block_of, power_of
from .params import check_inverse_dtype
from .shared_engine import SharedEngine, as_rows

# What the blocks of a layer are: the size of small ones with matrices of their own, "fused" or
# "wide" ones that rows share, or None if it steps elementwise. Fused and wide ones are apart, since
# one call serves either.
Shape = int | str | None


def make_engines(
    layers: Iterable[Layer], group: ParamGroup, present: Sequence[Engine] = ()
) -> list[Engine]:
    """The engines of a parameter group; layers that can step together share one.

    Args:
        present: engines to take instead of new ones where they have just the layers wanted.
    """
    graft = group["graft"] is not None
    # Keyed by kind, family, shape of the blocks, power, dtype and device.
    together: dict[tuple[str, str, Shape, float, torch.dtype, torch.device], list[Layer]] = {}
    for layer in layers:
        if all(p.numel() == 0 for p in layer.parameters):
            continue
        kind = layer.kind(group["conv"], group["fc"])
        shape = _block_shape(layer, kind, max_block_of(group), graft)
        check_inverse_dtype(layer.name, layer.weight, group["inverse_dtype"])
        power = 0.0 if shape is None else power_of(group, layer.family)
        key = (kind, layer.family, shape, power, layer.weight.dtype, layer.weight.device)
        together.setdefault(key, []).append(layer)
    engines: list[Engine] = []
    for (kind, _, shape, power, _, _), members in together.items():
        fitting = [engine for engine in present if _serves(engine, kind, members)]
        if fitting:
            engines.append(fitting[0])
        elif shape is None:
            engines.append(ElementwiseEngine(members, kind))
        elif isinstance(shape, int):
            _check_power(members[0], kind, power)
            engines.append(BlockEngine(members, kind, shape, group["inverse_dtype"], graft))
        else:
            engines.append(SharedEngine(members, kind, max_block_of(group), graft))
    return engines


def check_power(layers: Iterable[Layer], group: ParamGroup) -> None:
    """Raises if the blocks of a layer can only be inverted, and another power is wanted."""
    for layer in layers:
        power = power_of(group, layer.family)
        if power == -1.0 or is_lazy(layer.weight):  # of which no shape is known yet
            continue
        kind = layer.kind(group["conv"], group["fc"])
        max_block = max_block_of(group)
        shape = _block_shape(layer, kind, max_block, group["graft"] is not None)
        if isinstance(shape, int):
            _check_power(layer, kind, power)


def _check_power(layer: Layer, kind: str, power: float) -> None:
    if power != -1.0:
        raise ValueError(
            f"power: {layer.name} has small blocks of its own (kind {kind!r}), whose power is -1; "
            f"got {power}. Blocks that rows share (conv='filter' or 'average', fc='average') have "
            "others, and a parameter group may have a power of its own"
        )


def _serves(engine: Engine, kind: str, layers: Sequence[Layer]) -> bool:
    return (
        engine.kind == kind
        and len(engine.layers) == len(layers)
        and all(map(is_same, engine.layers, layers))
    )


def is_elementwise(layer: Layer, group: ParamGroup) -> bool:
    """Whether a layer steps without a matrix."""
    kind = layer.kind(group["conv"], group["fc"])
    return _is_elementwise(kind, group["graft"] is not None)


def _is_elementwise(kind: str, graft: bool) -> bool:
    return kind == "adam" or (kind == "diagonal" and graft)


def _block_shape(layer: Layer, kind: str, max_block: int | None, graft: bool) -> Shape:
    if _is_elementwise(kind, graft):
        return None
    if kind == "diagonal":
        return 1
    if kind == "kernel" and layer.kernel_volume <= MAX_FUSED_BLOCK:
        return layer.kernel_volume
    width = mk.RowForm.of(as_rows(layer, kind), max_block).width
    whole_rows = kind == "row" and layer.bias is None and width == layer.weight.shape[1]
    if whole_rows and width <= MAX_FUSED_BLOCK:
        return width
    on_cpu = layer.weight.device.type == "cpu"
    most = mk.MAX_CPU_SHARED_BLOCK if on_cpu else mk.MAX_FUSED_SHARED_BLOCK
    return "fused" if width <= most else "wide"
