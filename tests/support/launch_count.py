"""Counts what operations would launch on a GPU, without one and without executing anything.

Tensors are on torch's device ``meta``: they have shapes and no memory, and the package treats every
device but the CPU like a GPU. Triton's launches are noted where Triton would compile the kernel.
Those of torch are noted by its dispatcher: every operator whose result or argument is on the device
counts, but views and allocations.
"""

import math
from collections import Counter
from contextlib import contextmanager
from typing import NamedTuple

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = "meta"
ALLOCATIONS = ("empty", "new_empty", "empty_like", "empty_strided", "resize_", "set_", "lift_fresh")

# Operators that read on the host whether all matrices were served.
READ_BY_TORCH = ("_linalg_eigh", "cholesky_inverse")

# The limits of a launch over lists of tensors (ATen/native/cuda/MultiTensorApply.cuh): tensors by
# the number of lists, and chunks. Builds for CUDA 13 take seven times as many.
MOST_TENSORS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}
MOST_CHUNKS = 320
CHUNK = 65_536


class Noted(NamedTuple):
    """Something that one operation started on the device."""

    name: str
    launches: int
    programs: int = 0  # of a Triton kernel
    bytes_of: tuple[int, ...] = ()  # of the tensors among its arguments


class LaunchLog:
    """What was noted so far, and how often the host waited for the device."""

    def __init__(self):
        self.noted: list[Noted] = []
        self.waits = 0
        self.tables = 0  # uses of tables of addresses: each is one copy more when these change

    def clear(self):
        self.noted.clear()
        self.waits = self.tables = 0

    @property
    def launches(self):
        return sum(each.launches for each in self.noted)

    def by_name(self):
        counts = Counter()
        for each in self.noted:
            counts[each.name] += each.launches
        return dict(counts.most_common())


def _uniform(lists):
    return all(len({t.dtype for t in tensors}) <= 1 for tensors in lists)


def list_launches(lists, converts=False):
    """The launches of an operator over lists of tensors.

    It takes them together if at every place the tensors of all lists have the same shape, strides
    and device, are dense, and all tensors have one dtype; a copy ``converts``, and needs one dtype
    in each list. Otherwise it takes them one by one.
    """
    first = lists[0]
    one_dtype = len({t.dtype for tensors in lists for t in tensors}) <= 1
    together = (one_dtype or (converts and _uniform(lists))) and all(
        t.stride() == first[i].stride()
        and t.shape == first[i].shape
        and torch._debug_has_internal_overlap(t) == 0
        for tensors in lists
        for i, t in enumerate(tensors)
    )
    if not together:
        return len(first)
    chunks = sum(math.ceil(t.numel() / CHUNK) for t in first)
    return max(math.ceil(len(first) / MOST_TENSORS[len(lists)]), math.ceil(chunks / MOST_CHUNKS))


def _tensors(value):
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(each)


class _Dispatched(TorchDispatchMode):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = operator._schema.name.removeprefix("aten::")
        if name == "_local_scalar_dense" and args[0].device.type == DEVICE:
            self.log.waits += 1
            return 0
        result = operator(*args, **kwargs)
        self.log.waits += self._waits(name, args, kwargs, result)
        involved = _tensors([args, list(kwargs.values()), result])
        if any(t.device.type == DEVICE for t in involved) and not self._is_free(operator, name):
            self.log.noted.append(Noted(name, self._launches(name, args)))
        return result

    @staticmethod
    def _waits(name, args, kwargs, result):
        """Whether torch waits for the device by itself."""
        if name in READ_BY_TORCH:
            return 1
        if name not in ("_to_copy", "copy_") or kwargs.get("non_blocking"):
            return 0
        source = args[1] if name == "copy_" else args[0]
        target = args[0] if name == "copy_" else result
        blocks = name == "_to_copy" or not (len(args) > 2 and args[2])
        return int(blocks and {source.device.type, target.device.type} == {"cpu", DEVICE})

    @staticmethod
    def _is_free(operator, name):
        returns = operator._schema.returns
        is_view = any(r.alias_info is not None and not r.alias_info.is_write for r in returns)
        return is_view or name in ALLOCATIONS

    @staticmethod
    def _launches(name, args):
        lists = [a for a in args if isinstance(a, (list, tuple)) and a and isinstance(a[0], Tensor)]
        if name.startswith("_fused_adam"):
            return list_launches(lists[:4])  # the last one has the counts of steps
        if name.startswith("_foreach"):
            return list_launches(lists, converts=name.startswith("_foreach_copy"))
        return 1


class _Landed:
    """A count of failures whose copy to the host is complete."""

    def done(self):
        return True

    def value(self):
        return 0


@contextmanager
def launches_counted(multiprocessors=108, arch=80):
    """Within it, tensors on ``DEVICE`` are those of a GPU with the Triton backend."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    import mbf_kernels as mk
    from mbf_kernels.backends.triton import dense, launch
    from mbf_kernels.backends.triton.device import INTERPRETED
    from mbf_kernels.backends.triton.table import HostTable
    from mbf_optim import failures

    if INTERPRETED:
        pytest.skip("Triton's interpreter has no launches")
    log = LaunchLog()

    class Driver:
        def get_active_torch_device(self):
            return torch.device(DEVICE)

        def get_current_target(self):
            return GPUTarget("cuda", arch, 32)

    def note_kernel(kernel, *args, grid, **options):
        sizes = tuple(t.numel() * t.element_size() for t in args if isinstance(t, Tensor))
        log.noted.append(Noted(kernel.fn.__name__, 1, math.prod(grid), sizes))

    def note_copy(failed):
        log.noted.append(Noted("copy to the host", 1))
        return _Landed()

    refresh = HostTable.refresh

    def note_table(table, values):
        log.tables += 1
        return refresh(table, values)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "_active", Driver())
        patch.setattr(JITFunction, "run", note_kernel)
        patch.setattr(failures, "start_copy", note_copy)
        patch.setattr(HostTable, "refresh", note_table)
        for module in (dense, launch):
            patch.setattr(module, "multiprocessors", lambda device: multiprocessors)
        with mk.use_backend("triton"), _Dispatched(log):
            yield log
