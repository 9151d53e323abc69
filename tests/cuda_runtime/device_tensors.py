"""Tensors on a device of the model: torch's own operations on them are queued on its streams.

The memory is on the CPU, and addresses are real ones. An operation runs when the model chooses; its
result has a shape at once, which torch's meta device knows. What a GPU waits for, such as
``item()`` or a shape that depends on values, waits here too.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter, tree_map

from tests.cuda_runtime.allocators import Allocators, Block
from tests.cuda_runtime.memory import Span, merged
from tests.cuda_runtime.order import Operation
from tests.cuda_runtime.runtime import Effect, Event, Runtime, Stream

aten = torch.ops.aten

# What does not read what it overwrites, and what reads no values at all.
FILLS = {"copy_", "fill_", "zero_", "normal_", "uniform_", "random_", "bernoulli_"}
EMPTY = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}


class Lifetime:
    """All tensors on a block have the same one; when the last of them is gone, so is it."""


class DeviceTensor(torch.Tensor):
    """To C++ it is on the meta device, which has no streams of its own."""

    memory: torch.Tensor
    lifetime: Lifetime
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(
        cls, memory: torch.Tensor, device: torch.device, lifetime: Lifetime
    ) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls,
            memory.shape,
            strides=memory.stride(),
            storage_offset=memory.storage_offset(),
            dtype=memory.dtype,
            device="meta",
        )
        made.memory, made.on_device, made.lifetime = memory, device, lifetime
        return made

    device = property(lambda self: self.on_device)
    is_cuda = property(lambda self: True)
    is_meta = property(lambda self: False)

    def data_ptr(self) -> int:
        return self.memory.data_ptr()

    def to(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """No copy if the tensor is there already."""
        args = tuple(a for a in args if not self._is_here(a))
        if self._is_here(kwargs.get("device")):
            del kwargs["device"]
        return super().to(*args, **kwargs) if args or set(kwargs) - {"non_blocking"} else self

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def __getitem__(self, index: Any) -> torch.Tensor:
        return super().__getitem__(_with_tensors(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_with_tensors(index), value)

    def __repr__(self, **_: Any) -> str:
        return f"DeviceTensor({tuple(self.shape)}, {self.dtype}, {self.device})"

    def _is_here(self, device: Any) -> bool:
        return isinstance(device, (str, torch.device)) and torch.device(device) == self.device

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} on a tensor of the model, outside of it")


def _with_tensors(index: Any) -> Any:
    """C++ would make a tensor of a list on the meta device, where it has no values."""
    if isinstance(index, tuple):
        return tuple(_with_tensors(i) for i in index)
    return torch.tensor(index) if isinstance(index, list) else index


class DeviceTensors(TorchDispatchMode):
    """Inside, operations on tensors of the model's devices are queued."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime
        self.allocators = Allocators(runtime)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        tensors = [x for x in tree_iter((args, kwargs)) if isinstance(x, torch.Tensor)]
        on_device = next((t for t in tensors if isinstance(t, DeviceTensor)), None)
        wanted = kwargs.get("device")
        wanted = None if wanted is None else torch.device(wanted)
        if on_device is None and (wanted is None or wanted.type == "cpu"):
            return self._on_host(func, args, kwargs, tensors)
        if func is aten._to_copy.default:
            return self._to_copy(args[0], wanted, kwargs)
        if func is aten.copy_.default:
            return self._copy(args[0], args[1], *args[2:])
        if on_device is None:
            assert wanted is not None
            return self._queue(func, args, kwargs, self._device(wanted))
        if func.is_view:
            return tree_map(lambda x: self._view(x, on_device), func(*_real(args), **_real(kwargs)))
        return self._queue(func, args, kwargs, on_device.device)

    # --- torch operations -------------------------------------------------------------------

    def _queue(self, func: Any, args: Any, kwargs: Any, device: torch.device) -> Any:
        """Queues an operation on the current stream of a device."""
        stream = self._stream(device)
        reads, writes = _accessed(func, args, kwargs)
        inputs, named = _real((args, kwargs), at_once=True)
        if "device" in named:
            named["device"] = "cpu"
        results: list[Any] = []

        def compute() -> None:
            results[:] = [func(*inputs, **named)]

        try:
            shaped = func(*_meta(args), **_meta(kwargs))
        except (RuntimeError, NotImplementedError):
            # The shape depends on values.
            self._now(stream, str(func), compute, reads, writes)
            return tree_map(lambda x: self._uploaded(x, stream), results[0])
        if not any(isinstance(x, torch.Tensor) for x in tree_iter(shaped)) and shaped is not None:
            self._now(stream, str(func), compute, reads, writes)
            return results[0]
        changed = _changed_results(func, args, kwargs)
        if changed is not None:
            self._later(stream, str(func), compute, reads, writes)
            # Lists in place return nothing, for which the dispatcher takes no empty tuple.
            return None if isinstance(changed, tuple) and not changed else changed
        made = tree_map(lambda x: self._like(x, stream), shaped)
        if _name(func) not in EMPTY:
            outputs = [x.memory for x in tree_iter(made) if isinstance(x, DeviceTensor)]

            def compute_into() -> None:
                compute()
                values = [x for x in tree_iter(results) if isinstance(x, torch.Tensor)]
                for output, value in zip(outputs, values, strict=True):
                    output.copy_(value)

            written = [*writes, *(span for output in outputs for span in spans_of(output))]
            self._later(stream, str(func), compute_into, reads, written)
        return made

    def _later(
        self,
        stream: Stream,
        name: str,
        run: Callable[[], object],
        reads: Sequence[Span] = (),
        writes: Sequence[Span] = (),
    ) -> Operation | None:
        def run_and_return_nothing() -> None:
            run()

        name = name.removesuffix(".default")
        return self.runtime.enqueue(
            stream, Effect(name, outside(run_and_return_nothing), reads, writes)
        )

    def _now(self, stream: Stream, *what: Any) -> None:
        self._later(stream, *what)
        stream.synchronize()

    # --- copies -----------------------------------------------------------------------------

    def _to_copy(self, source: torch.Tensor, wanted: torch.device | None, kwargs: Any) -> Any:
        """``to``: memory of the other device, and a copy into it."""
        here = source.device if isinstance(source, DeviceTensor) else torch.device("cpu")
        device = here if wanted is None or wanted.type == "meta" else wanted
        dtype = kwargs.get("dtype") or source.dtype
        shape = torch.empty_like(_meta(source), dtype=dtype)
        if device.type == "cpu":
            target = torch.empty_strided(shape.shape, shape.stride(), dtype=dtype)
            return self._copy(target, source, False)
        made = self._like(shape, self._stream(self._device(device)))
        return self._copy(made, source, bool(kwargs.get("non_blocking")) or here == made.device)

    def _copy(
        self, target: torch.Tensor, source: torch.Tensor, non_blocking: bool = False
    ) -> torch.Tensor:
        """Within a device, between two devices, or between a device and the host."""
        to_device, from_device = (isinstance(t, DeviceTensor) for t in (target, source))
        devices = [t.device for t in (source, target) if isinstance(t, DeviceTensor)]
        stream = self._stream(devices[0])
        # As tensors of their own, since a copy does not keep the caller's alive.
        to, values = _real(target).detach(), _real(source).detach()
        name = "a copy from the host" if not from_device else "a copy to the host"
        pinned = None
        if to_device and from_device:
            name, non_blocking = "a copy", True
            _make_wait(stream, self._stream(devices[1]))  # torch orders both streams with it
        else:
            host = to if from_device else values
            pinned = self.allocators.pinned_at(_hull(host)) if host.numel() else None
            if pinned is None and not to_device:
                non_blocking = False
            if pinned is None and to_device:
                values = values.clone()  # the driver keeps what it has not sent
        reads = spans_of(values) if from_device or pinned is not None else []
        writes = spans_of(to) if to_device or pinned is not None else []
        made = self._later(stream, name, lambda: to.copy_(values), reads, writes)
        if pinned is not None and made is not None:
            pinned.uses |= made.bit
        if to_device and from_device:
            _make_wait(self._stream(devices[1]), stream)
        if not non_blocking:
            stream.synchronize()
        return target

    # --- the host ---------------------------------------------------------------------------

    def _on_host(self, func: Any, args: Any, kwargs: Any, tensors: list[torch.Tensor]) -> Any:
        """An operation on the host; it may access pinned memory."""
        if kwargs.pop("pin_memory", False):
            if func is not aten.empty.memory_format:
                raise NotImplementedError(f"{func} in pinned memory")
            return self._pinned(func(*args, **kwargs))
        if not func.is_view and any(self._is_pinned(t) for t in tensors):
            reads, writes = _accessed(func, args, kwargs)
            operation = self.runtime.host(f"{func} on the host")
            self.runtime.memory.read(operation, reads)
            self.runtime.memory.write(operation, writes)
        return func(*args, **kwargs)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """``Tensor.pin_memory``."""
        with _disable_current_modes():
            found = self._pinned(tensor).copy_(tensor)
        operation = self.runtime.host("a copy into pinned memory")
        self.runtime.memory.write(operation, spans_of(found))
        return found

    def _pinned(self, like: torch.Tensor) -> torch.Tensor:
        """A tensor in pinned memory."""
        block = self.allocators.pinned_block(_bytes(like))
        found = _on(block, like)
        weakref.finalize(found, self.allocators.free_pinned_block, block)
        return found

    def _is_pinned(self, tensor: torch.Tensor) -> bool:
        return tensor.numel() > 0 and self.allocators.pinned_at(_hull(tensor)) is not None

    # --- making tensors ---------------------------------------------------------------------

    def _stream(self, device: torch.device) -> Stream:
        return self.runtime.current[self._device(device).index]

    def _device(self, device: torch.device) -> torch.device:
        index = device.index if device.type == "cuda" else None
        return torch.device("cuda", self.runtime.device if index is None else index)

    def _like(self, shape: Any, stream: Stream) -> Any:
        """A new tensor with this shape and these strides, for work on a stream."""
        if not isinstance(shape, torch.Tensor):
            return shape
        block = self.allocators.device_block(stream, _bytes(shape))
        lifetime = Lifetime()
        of_graph = stream.capture is not None
        weakref.finalize(lifetime, self.allocators.free_device_block, block, of_graph)
        device = torch.device("cuda", stream.device)
        return DeviceTensor(_on(block, shape), device, lifetime)

    def _uploaded(self, value: Any, stream: Stream) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        made = self._like(value, stream)
        self._later(stream, "a result", lambda: made.memory.copy_(value), [], spans_of(made.memory))
        return made

    @staticmethod
    def _view(value: Any, base: DeviceTensor) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return DeviceTensor(value, base.device, base.lifetime)


def _name(func: Any) -> str:
    name: str = func._schema.name
    return name.removeprefix("aten::")


def outside(run: Callable[[], Any]) -> Callable[[], Any]:
    """``run`` with plain torch, from wherever the model calls it."""

    def with_plain_torch() -> Any:
        with _disable_current_modes(), torch.no_grad():
            return run()

    return with_plain_torch


def spans_of(tensor: torch.Tensor) -> list[Span]:
    """The bytes of all elements."""
    size = tensor.element_size()
    first = tensor.data_ptr()
    if tensor.numel() == 0:
        return []
    if tensor.is_contiguous():
        return [(first, first + tensor.numel() * size)]
    offsets = np.zeros(1, dtype=np.int64)
    for count, stride in zip(tensor.shape, tensor.stride(), strict=True):
        offsets = (offsets[:, None] + np.arange(count) * stride * size).ravel()
    return merged((first + int(o), first + int(o) + size) for o in np.unique(offsets))


def _make_wait(later: Stream, earlier: Stream) -> None:
    if later is earlier:
        return
    event = Event(later.runtime)
    event.record(earlier)
    later.wait(event)


def _accessed(func: Any, args: Any, kwargs: Any) -> tuple[list[Span], list[Span]]:
    reads: list[Span] = []
    writes: list[Span] = []
    name = _name(func)
    fills = name in FILLS
    if name.endswith("_like") or name.startswith("new_"):
        return [], []
    for argument, tensor in _tensors(func, args, kwargs):
        spans = spans_of(_real(tensor))
        written = argument.alias_info is not None and argument.alias_info.is_write
        if written:
            writes += spans
        if not written or not (fills or argument.is_out):
            reads += spans
    return reads, writes


def _tensors(func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, torch.Tensor]]:
    """Every tensor among the arguments, with what the schema says of it."""
    for i, argument in enumerate(func._schema.arguments):
        value = args[i] if i < len(args) else kwargs.get(argument.name)
        for tensor in tree_iter(value):
            if isinstance(tensor, torch.Tensor):
                yield argument, tensor


def _changed_results(func: Any, args: Any, kwargs: Any) -> Any:
    """What an operation in place returns; None if it makes new tensors."""
    changed = [
        tensor
        for argument, tensor in _tensors(func, args, kwargs)
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    returns = func._schema.returns
    if not changed:
        return None
    if not returns:
        return ()
    if all(r.alias_info is not None and r.alias_info.is_write for r in returns):
        return changed[0] if len(returns) == 1 else tuple(changed)
    raise NotImplementedError(f"{func} changes tensors and makes new ones")


def _real(values: Any, at_once: bool = False) -> Any:
    """The memory of tensors on a device; with ``at_once``, copies of those on the host."""

    def of(x: Any) -> Any:
        if isinstance(x, DeviceTensor):
            return x.memory
        return x.clone() if at_once and isinstance(x, torch.Tensor) else x

    return tree_map(of, values)


def _meta(values: Any) -> Any:
    def of(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="meta")
        return torch.device("meta") if isinstance(x, torch.device) else x

    return tree_map(of, values)


def _bytes(shape: torch.Tensor) -> int:
    if shape.numel() == 0:
        return 0
    steps = zip(shape.shape, shape.stride(), strict=True)
    return shape.element_size() * (1 + sum((n - 1) * stride for n, stride in steps))


def _on(block: Block, shape: torch.Tensor) -> torch.Tensor:
    """A tensor of this form at the start of a block."""
    storage = block.bytes.untyped_storage()
    empty = torch.empty(0, dtype=shape.dtype)
    return empty.set_(storage, 0, shape.shape, shape.stride())


def _hull(tensor: torch.Tensor) -> Span:
    first = tensor.data_ptr()
    return first, first + max(_bytes(tensor), 1)
