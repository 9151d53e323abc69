"""Packs the arguments of a kernel, and finds the memory that it may reach."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from tests.ptx.program import PtxError
from tests.ptx.translator import Parameter

Span = tuple[int, int]  # first address, and the one after the last

PACKED = {("f32", 4): "<f", ("f64", 8): "<d"}


def span(tensor: torch.Tensor) -> Span:
    """The bytes between the first and the last element of a tensor."""
    if tensor.device.type != "cpu":
        raise PtxError(f"expected a tensor on cpu, got one on {tensor.device}")
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return first, first
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    elements = 1 + sum((size - 1) * stride for size, stride in steps)
    return first, first + elements * tensor.element_size()


def merged(spans: Iterable[Span]) -> list[Span]:
    """The same memory in ascending spans that do not overlap: views of a tensor become one."""
    found: list[Span] = []
    for low, high in sorted(spans):
        if low == high:
            continue
        if found and low < found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], high))
        else:
            found.append((low, high))
    return found


def packed(parameters: Sequence[Parameter], arguments: Sequence[Any]) -> bytes:
    """The bytes of the parameters: tensors as pointers, bytes as they are, None and others as 0.

    Triton passes fewer arguments than its kernels have parameters: the last are scratch memory.
    """
    if len(arguments) > len(parameters):
        raise PtxError(f"expected {len(parameters)} arguments, got {len(arguments)}")
    end = parameters[-1].offset + parameters[-1].size if parameters else 0
    data = bytearray(end)
    for parameter, argument in zip(parameters, arguments, strict=False):
        value = _bytes_of(parameter, argument)
        if len(value) != parameter.size:
            raise PtxError(f"{parameter.name}: expected {parameter.size} bytes, got {len(value)}")
        data[parameter.offset : parameter.offset + parameter.size] = value
    return bytes(data)


def _bytes_of(parameter: Parameter, argument: Any) -> bytes:
    if argument is None:
        return bytes(parameter.size)
    if isinstance(argument, torch.Tensor):
        return struct.pack("<Q", argument.data_ptr())
    if isinstance(argument, bytes):
        return argument
    if isinstance(argument, float):
        form = PACKED.get((parameter.type, parameter.size)) or {4: "<f", 8: "<d"}[parameter.size]
        return struct.pack(form, argument)
    if parameter.type in ("f32", "f64"):
        return struct.pack(PACKED[parameter.type, parameter.size], float(argument))
    return (int(argument) % 2 ** (8 * parameter.size)).to_bytes(parameter.size, "little")
