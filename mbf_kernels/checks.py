"""Checks of the arguments of a call, and the exceptions for those that are wrong.

Backends that do not check their arguments rely on these checks alone. The compiled operators check
every argument themselves before they write. When one refuses a call, these checks run and raise
the same exception as with any other backend.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .errors import TensorTypeError, TensorValueError
from .extension import EXTENSION
from .layout import TileLayout
from .options import StepScalars

SHORT_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
PARAM_DTYPES = (*SHORT_DTYPES, torch.float64)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _one_of(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(dtype_name(dtype) for dtype in dtypes)


def _check_tensor(
    name: str,
    index: int,
    tensor: object,
    device: torch.device | None,
    dtypes: Sequence[torch.dtype],
) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TensorTypeError(name, index, f": expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TensorTypeError(name, index, f": expected a dense tensor, got layout {tensor.layout}")
    if device is not None and tensor.device != device:
        raise TensorValueError(
            name, index, f": expected a tensor on {device}, got one on {tensor.device}"
        )
    if tensor.dtype not in dtypes:
        raise TensorTypeError(
            name, index, f": expected {_one_of(dtypes)}, got {dtype_name(tensor.dtype)}"
        )
    return tensor


def check_count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name}: expected 1 or more, got {value}")
    return value


def check_inverse_dtype(dtype: object, double: bool) -> None:
    """The dtype of the inverses; the default float32 is accepted with float64 parameters."""
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"inverse_dtype: expected a torch dtype, got {type(dtype).__name__}")
    allowed = (torch.float32, torch.float64) if double else (torch.float32, torch.bfloat16)
    if dtype not in allowed:
        parameters = "float64" if double else "these"
        raise TypeError(
            f"inverse_dtype: expected {_one_of(allowed)} with {parameters} parameters, "
            f"got {dtype_name(dtype)}"
        )


def check_unit_interval(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ValueError(f"{name}: expected a number in [0, 1], got {value}")


def check_damping(values: Sequence[float]) -> None:
    for value in values:
        if not (value >= 0.0 and math.isfinite(value)):
            raise ValueError(f"damping: expected a finite number >= 0, got {value}")


def refuse_not_finite(scalars: StepScalars) -> None:
    for name, value in scalars._asdict().items():
        if not math.isfinite(value):
            raise ValueError(f"{name}: expected a finite number, got {value}")


def check_part(name: str, part: object) -> tuple[int, int]:
    """Returns ``(i, n)``, the i-th of n equal parts; raises if ``part`` is anything else."""
    try:
        index, count = map(operator.index, part)  # type: ignore[call-overload]  # checked here
    except (TypeError, ValueError):
        index, count = -1, 0
    if not 0 <= index < count:
        raise ValueError(f"{name}: expected (i, n) with 0 <= i < n, got {part!r}")
    return index, count


def check_target_norms(values: object, refresh: bool, tensors: int) -> Tensor:
    """Expects one value or one per tensor; norms to be refreshed are float64, one per tensor."""
    if isinstance(values, Tensor) and values.shape == (tensors,) and values.dtype == torch.float64:
        return values
    return _other_target_norms(values, refresh, tensors)


def check_device(name: str, tensor: Tensor, device: torch.device) -> None:
    if tensor.device != device:
        raise ValueError(f"{name}: expected a tensor on {device}, got one on {tensor.device}")


def is_plain_float64(values: Tensor) -> bool:
    """A vector that can be handed on as it is."""
    return values.dtype == torch.float64 and values.dim() == 1 and not values.requires_grad


def _other_target_norms(values: object, refresh: bool, tensors: int) -> Tensor:
    if not isinstance(values, Tensor):
        raise TypeError(
            f"target_norms: expected a tensor{'' if refresh else ' or None'}, "
            f"got {type(values).__name__}"
        )
    if refresh:
        raise ValueError(
            f"target_norms: expected {tensors} float64 values to be refreshed, got "
            f"{dtype_name(values.dtype)} of shape {tuple(values.shape)}"
        )
    check_per_tensor("target_norms", values.numel(), tensors)
    return values


def check_per_tensor(name: str, count: int, tensors: int) -> None:
    if count not in (1, tensors):
        raise ValueError(f"{name}: expected 1 or {tensors} values, got {count}")


def check_layers(tensors: Sequence[Tensor], dtypes: Sequence[torch.dtype]) -> None:
    """The tensors that shared blocks are made for."""
    for i, tensor in enumerate(tensors):
        _check_tensor("layers", i, tensor, tensors[0].device if i else None, dtypes)


def check_params(params: Sequence[Tensor], block_size: int) -> None:
    """The tensors that blocks are made for: one dtype, one device, whole blocks."""
    for i, param in enumerate(params):
        device = params[0].device if i else None
        _check_tensor("params", i, param, device, (params[0].dtype,) if i else PARAM_DTYPES)
        if param.numel() % block_size:
            raise TensorValueError(
                "params",
                i,
                f": expected a multiple of block_size {block_size} numbers, "
                f"got {param.numel()} (shape {tuple(param.shape)})",
            )


def check_list(
    name: str,
    tensors: Sequence[Tensor | None],
    layout: TileLayout,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    may_be_absent: bool = False,
) -> None:
    """Compares a list argument with the tensors that the blocks were made for."""
    counts = layout.block_counts
    if len(tensors) != len(counts):
        raise ValueError(f"{name}: expected {len(counts)} tensors, got {len(tensors)}")
    for i, entry in enumerate(tensors):
        if entry is None and may_be_absent:
            continue
        tensor = _check_tensor(name, i, entry, device, dtypes)
        wanted = counts[i] * layout.block_size
        if tensor.numel() != wanted:
            raise TensorValueError(name, i, f": expected {wanted} numbers, got {tensor.numel()}")


def check_shapes(
    name: str,
    tensors: Sequence[Tensor | None],
    shapes: Sequence[tuple[int, ...]],
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    may_be_absent: bool = False,
) -> None:
    """Compares a list argument with the shapes that blocks were made for."""
    if len(tensors) != len(shapes):
        raise ValueError(f"{name}: expected {len(shapes)} tensors, got {len(tensors)}")
    for i, (entry, shape) in enumerate(zip(tensors, shapes, strict=True)):
        if entry is None and may_be_absent:
            continue
        tensor = _check_tensor(name, i, entry, device, dtypes)
        if tuple(tensor.shape) != shape:
            text = f": expected shape {shape}, got {tuple(tensor.shape)}"
            raise TensorValueError(name, i, text)


def _addresses(tensor: Tensor) -> tuple[int, int]:
    """The first address and one past the last."""
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _overlaps_itself(tensor: Tensor) -> bool:
    reach = 1
    dims = zip(tensor.stride(), tensor.shape, strict=True)
    for stride, size in sorted(dim for dim in dims if dim[1] > 1):
        if stride < reach:
            return True
        reach = stride * size
    return False


class _Range(NamedTuple):
    begin: int
    end: int
    name: str
    place: int
    written: bool


def check_memory(
    written: dict[str, Sequence[Tensor]], read: dict[str, Sequence[Tensor | None]]
) -> None:
    """Checks that written memory is writable and overlaps no other tensor."""
    ranges: list[_Range] = []
    lists: Mapping[str, Sequence[Tensor | None]]
    for lists, is_written in ((written, True), (read, False)):
        for name, tensors in lists.items():
            for i, tensor in enumerate(tensors):
                if tensor is None or tensor.numel() == 0 or tensor.device.type == "meta":
                    continue
                begin, end = _addresses(tensor)
                if is_written and _overlaps_itself(tensor):
                    raise TensorValueError(
                        name, i, ": several of its numbers share memory (an expanded tensor?)"
                    )
                if is_written and not _writable(tensor, end - begin):
                    raise TensorValueError(name, i, ": its memory is read-only")
                ranges.append(_Range(begin, end, name, i, is_written))
    ranges.sort(key=lambda entry: entry.begin)
    furthest: _Range | None = None
    furthest_written: _Range | None = None
    for entry in ranges:
        other = furthest if entry.written else furthest_written
        if other is not None and entry.begin < other.end:
            raise TensorValueError(
                entry.name,
                entry.place,
                f" and {other.name}[{other.place}]: expected separate memory, but they overlap",
            )
        if furthest is None or entry.end > furthest.end:
            furthest = entry
        if entry.written and (furthest_written is None or entry.end > furthest_written.end):
            furthest_written = entry


def _writable(tensor: Tensor, size: int) -> bool:
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return False
    if tensor.device.type != "cpu" or EXTENSION is None:
        return True
    return bool(EXTENSION.memory_is_writable(tensor.data_ptr(), size))


def check_not_recording(**lists: Sequence[Tensor]) -> None:
    """Raises if autograd would record the call, which is not differentiable."""
    for name, tensors in lists.items():
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise RuntimeError(
                    f"{name}[{i}]: requires a gradient and gradients are being recorded; "
                    "expected the call inside torch.no_grad()"
                )
