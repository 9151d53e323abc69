"""What a call must look like, and the words for what is wrong with it.

The compiled operators check every argument themselves before they write; they are fast and terse.
The torch backend has only these checks, and when a compiled operator refuses, these run once more
to raise the same Python exception whichever backend was used.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from ._extension import EXTENSION
from .layout import TileLayout

PARAM_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _one_of(dtypes: Sequence[torch.dtype]) -> str:
    return " or ".join(dtype_name(dtype) for dtype in dtypes)


def _check_tensor(where: str, tensor: object, device: torch.device | None) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{where}: expected a tensor, got {type(tensor).__name__}")
    if tensor.layout != torch.strided:
        raise TypeError(f"{where}: expected a dense tensor, got layout {tensor.layout}")
    if device is not None and tensor.device != device:
        raise ValueError(f"{where}: expected a tensor on {device}, got one on {tensor.device}")
    return tensor


def _check_dtype(where: str, tensor: Tensor, allowed: Sequence[torch.dtype]) -> None:
    if tensor.dtype not in allowed:
        raise TypeError(f"{where}: expected {_one_of(allowed)}, got {dtype_name(tensor.dtype)}")


def check_block_size(block_size: object) -> int:
    if isinstance(block_size, bool) or not isinstance(block_size, int):
        raise TypeError(f"block_size: expected an int, got {type(block_size).__name__}")
    if block_size < 1:
        raise ValueError(f"block_size: expected 1 or more, got {block_size}")
    return block_size


def check_inverse_dtype(dtype: object, double: bool) -> None:
    """How inverses are stored; with float64 parameters float32 stands for full precision."""
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


def check_finite(name: str, value: float) -> None:
    if not math.isfinite(value):
        raise ValueError(f"{name}: expected a finite number, got {value}")


def check_per_tensor(name: str, count: int, tensors: int) -> None:
    if count not in (1, tensors):
        raise ValueError(f"{name}: expected 1 or {tensors} values, got {count}")


def check_params(params: Sequence[Tensor], block_size: int) -> None:
    """For the constructor: one dtype, one device, whole blocks."""
    for i, param in enumerate(params):
        where = f"params[{i}]"
        _check_tensor(where, param, params[0].device if i else None)
        _check_dtype(where, param, PARAM_DTYPES if i == 0 else (params[0].dtype,))
        if param.numel() % block_size:
            raise ValueError(
                f"{where}: expected a multiple of block_size {block_size} numbers, "
                f"got {param.numel()} (shape {tuple(param.shape)})"
            )


def check_list(
    name: str,
    tensors: Sequence[Tensor | None],
    layout: TileLayout,
    device: torch.device,
    dtypes: Sequence[torch.dtype],
    may_be_absent: bool = False,
) -> None:
    """One list argument against the tensors the blocks were made for."""
    counts = layout.block_counts
    if len(tensors) != len(counts):
        raise ValueError(f"{name}: expected {len(counts)} tensors, got {len(tensors)}")
    for i, entry in enumerate(tensors):
        if entry is None and may_be_absent:
            continue
        where = f"{name}[{i}]"
        tensor = _check_tensor(where, entry, device)
        _check_dtype(where, tensor, dtypes)
        wanted = counts[i] * layout.block_size
        if tensor.numel() != wanted:
            raise ValueError(f"{where}: expected {wanted} numbers, got {tensor.numel()}")
        if not walkable(tensor, layout.block_size):
            raise ValueError(
                f"{where}: its memory cannot be walked in blocks of {layout.block_size} (strides "
                f"{tensor.stride()}); use a contiguous or channels_last tensor"
            )


def _collapses(dims: Sequence[tuple[int, int]]) -> bool:
    """One stride walks these (size, stride) dimensions in order."""
    dims = [dim for dim in dims if dim[0] != 1]
    return all(outer[1] == inner[0] * inner[1] for outer, inner in pairwise(dims))


def walkable(tensor: Tensor, block_size: int) -> bool:
    if tensor.is_contiguous() or tensor.numel() == 0:
        return True
    dims = list(zip(tensor.shape, tensor.stride(), strict=True))
    split, numbers = len(dims), 1
    while split > 0 and numbers < block_size:
        split -= 1
        numbers *= dims[split][0]
    if numbers != block_size or not _collapses(dims[split:]):
        return False
    return any(_collapses(dims[:k]) and _collapses(dims[k:split]) for k in range(split + 1))


def _span(tensor: Tensor) -> tuple[int, int]:
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


def check_memory(
    written: dict[str, Sequence[Tensor]], read: dict[str, Sequence[Tensor | None]]
) -> None:
    """Written memory is writable and shared with nothing else."""
    ranges: list[tuple[int, int, str, bool]] = []
    lists: Mapping[str, Sequence[Tensor | None]]
    for lists, is_written in ((written, True), (read, False)):
        for name, tensors in lists.items():
            for i, tensor in enumerate(tensors):
                if tensor is None or tensor.numel() == 0 or tensor.device.type == "meta":
                    continue
                where = f"{name}[{i}]"
                begin, end = _span(tensor)
                if is_written and _overlaps_itself(tensor):
                    raise ValueError(
                        f"{where}: several of its numbers share memory (an expanded tensor?)"
                    )
                if is_written and not _writable(tensor, end - begin):
                    raise ValueError(f"{where}: its memory is read-only")
                ranges.append((begin, end, where, is_written))
    ranges.sort(key=lambda entry: entry[0])
    furthest: tuple[int, int, str, bool] | None = None
    furthest_written: tuple[int, int, str, bool] | None = None
    for entry in ranges:
        other = furthest if entry[3] else furthest_written
        if other is not None and entry[0] < other[1]:
            raise ValueError(
                f"{entry[2]} and {other[2]}: expected separate memory, but they overlap"
            )
        if furthest is None or entry[1] > furthest[1]:
            furthest = entry
        if entry[3] and (furthest_written is None or entry[1] > furthest_written[1]):
            furthest_written = entry


def _writable(tensor: Tensor, size: int) -> bool:
    if tensor.is_inference() and not torch.is_inference_mode_enabled():
        return False
    if tensor.device.type != "cpu" or EXTENSION is None:
        return True
    return bool(EXTENSION.memory_is_writable(tensor.data_ptr(), size))


def check_not_recording(**lists: Sequence[Tensor]) -> None:
    """In-place steps are not differentiable: refuse them while autograd records."""
    if not torch.is_grad_enabled():
        return
    for name, tensors in lists.items():
        for i, tensor in enumerate(tensors):
            if isinstance(tensor, Tensor) and tensor.requires_grad:
                raise RuntimeError(
                    f"{name}[{i}]: requires a gradient and gradients are being recorded; "
                    "expected the call inside torch.no_grad()"
                )
