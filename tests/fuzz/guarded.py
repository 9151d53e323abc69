"""Tensors between guards: whatever is written beside them, or read far beside them, is noticed.

Each lies in pages of its own between two pages that cannot be accessed. The bytes around it, and
those between its elements if it is strided, hold a pattern that must not change.
"""

import ctypes
import mmap

import torch

PAGE = mmap.PAGESIZE
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


def _protect(address, size, protection):
    if _libc.mprotect(address, size, protection):
        raise OSError(ctypes.get_errno(), "mprotect")


class Guarded:
    """A tensor with these strides between guards.

    Args:
        values: what it holds, in any memory.
        strides: in elements; None: contiguous.
        place: "start" or "end", next to a page that cannot be accessed, or "middle".
        align: its address is a multiple of this many bytes.
        read_only: the system refuses writes.
    """

    def __init__(self, values, strides=None, place="middle", align=1, read_only=False):
        size = values.element_size()
        if strides is None:
            strides = torch.empty(values.shape, device="meta").stride()
        reach = sum((n - 1) * s for n, s in zip(values.shape, strides, strict=True)) + 1
        span = (reach if values.numel() else 0) * size
        align = max(align, size)
        margin = -(-256 // align) * align if place == "middle" else 0
        pages = -(-(span + 2 * margin + align) // PAGE)
        self._map = mmap.mmap(-1, (pages + 2) * PAGE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._map))
        self._whole = torch.frombuffer(self._map, dtype=torch.uint8)
        self.bytes = self._whole[PAGE : (pages + 1) * PAGE]
        start = (pages * PAGE - span) // align * align if place == "end" else margin
        self.bytes.copy_(torch.arange(len(self.bytes)) * 37 % 251)
        memory = self.bytes[start : start + span].view(values.dtype)
        self.tensor = memory.as_strided(values.shape, strides)
        self.tensor.copy_(values)
        self.before = self.bytes.clone()
        _protect(address, PAGE, 0)
        _protect(address + (pages + 1) * PAGE, PAGE, 0)
        if read_only:
            _protect(address + PAGE, pages * PAGE, mmap.PROT_READ)
        self._start, self._strides, self._size = start, strides, size

    def stray_writes(self, may_be_written):
        """How many bytes changed that must not; the elements may if ``may_be_written``."""
        changed = self.bytes != self.before
        if may_be_written and self.tensor.numel():
            offsets = torch.zeros(self.tensor.shape, dtype=torch.int64)
            for dim, stride in enumerate(self._strides):
                shape = [1] * self.tensor.dim()
                shape[dim] = -1
                offsets += (torch.arange(self.tensor.shape[dim]) * stride).reshape(shape)
            places = self._start + offsets.reshape(-1, 1) * self._size + torch.arange(self._size)
            changed[places.flatten()] = False
        return int(changed.sum())
