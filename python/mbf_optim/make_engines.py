"""Which layers share an engine, and which engine it is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from mbf_kernels import MAX_FUSED_BLOCK

from .block_engine import BlockEngine
from .dense_engine import DenseEngine
from .dense_form import Form
from .elementwise_engine import ElementwiseEngine
from .engine import Engine
from .layer_changes import is_same
from .layers import Layer
from .options import ParamGroup
from .params import check_inverse_dtype


def make_engines(
    layers: Iterable[Layer], group: ParamGroup, present: Sequence[Engine] = ()
) -> list[Engine]:
    """The engines of a parameter group; layers that can step together share one.

    Args:
        present: engines to take instead of new ones where they have just the layers wanted.
    """
    graft = group["graft"] is not None
    # Keyed by kind, block size or form (None: elementwise), dtype and device.
    together: dict[tuple[str, int | Form | None, torch.dtype, torch.device], list[Layer]] = {}
    for layer in layers:
        if all(p.numel() == 0 for p in layer.parameters):
            continue
        kind = layer.kind(group["conv"], group["fc"])
        shape = _block_shape(layer, kind, group["max_block"], graft)
        check_inverse_dtype(layer.name, layer.weight, group["inverse_dtype"])
        key = (kind, shape, layer.weight.dtype, layer.weight.device)
        together.setdefault(key, []).append(layer)
    engines: list[Engine] = []
    for (kind, shape, _, _), members in together.items():
        fitting = [engine for engine in present if _serves(engine, kind, members)]
        if fitting:
            engines.append(fitting[0])
        elif shape is None:
            engines.append(ElementwiseEngine(members, kind))
        elif isinstance(shape, int):
            engines.append(BlockEngine(members, kind, shape, group["inverse_dtype"], graft))
        else:
            engines.append(DenseEngine(members, kind, shape, graft))
    return engines


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


def assign_turns(engines: Sequence[Engine]) -> None:
    """Spreads the layers that take turns evenly over a period, whichever engine they are in."""
    total = sum(engine.turn_count for engine in engines)
    first = 0
    for engine in engines:
        engine.assign_turns(first, total)
        first += engine.turn_count


def _block_shape(layer: Layer, kind: str, max_block: int | None, graft: bool) -> int | Form | None:
    """The size of a layer's small blocks, or its form as rows; None if it steps elementwise."""
    if _is_elementwise(kind, graft):
        return None
    if kind == "diagonal":
        return 1
    if kind == "kernel":
        volume = layer.kernel_volume
        if volume <= MAX_FUSED_BLOCK:
            return volume
        kernels = layer.weight.numel() // volume  # beyond the small-block kernels
        return Form(kernels, 1, volume, 1, volume, False)
    form = Form.of(layer, kind, max_block)
    contiguous_rows = kind == "row" and not form.bias and form.pieces == 1
    return form.width if contiguous_rows and form.width <= MAX_FUSED_BLOCK else form
