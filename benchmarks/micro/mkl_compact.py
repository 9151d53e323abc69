"""Intel MKL's Compact routines, an optional peer and the existing library closest to ours.

Like our kernels they work on interleaved batches. Packing into their format is not timed. MKL picks
the format; on CPUs of other makers it may be narrower than the CPU's vectors.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from importlib import metadata
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..common import byte_model
from ..common.problem import Problem
from .checked_results import check_inverse
from .contender import Absent, Contender, Role

HOW_TO_GET = "pip install mbf-kernels[mkl], or set MKL_RT to the path of libmkl_rt"

# Values of MKL's C enumerations.
COLUMN_MAJOR = 102
NO_TRANS, TRANS = 111, 112
LOWER = 122
NON_UNIT = 131
LEFT = 141
INTERFACE_LP64 = 0
THREADING_SEQUENTIAL = 1
FORMATS = {181: "SSE", 182: "AVX", 183: "AVX-512"}


def _candidates() -> Iterator[str]:
    named = os.environ.get("MKL_RT")
    if named:
        yield named
        return
    try:
        for file in metadata.files("mkl") or []:
            if "mkl_rt" in file.name:
                yield str(file.locate())
    except metadata.PackageNotFoundError:
        pass
    for folder in (Path(sys.prefix) / "lib", *(Path(entry) for entry in sys.path)):
        yield from map(str, sorted(folder.glob("libmkl_rt.so*")))
    found = ctypes.util.find_library("mkl_rt")
    if found is not None:
        yield found


@lru_cache(maxsize=1)
def load() -> ctypes.CDLL:
    """Loads libmkl_rt for use on one thread: we divide a batch among threads of our own.

    Raises:
        OSError: it is missing or cannot be loaded; the message says how to get it.
    """
    failures = []
    for path in _candidates():
        try:
            library = ctypes.CDLL(path)
        except OSError as error:
            failures.append(str(error))
            continue
        library.MKL_Set_Interface_Layer(INTERFACE_LP64)
        library.MKL_Set_Threading_Layer(THREADING_SEQUENTIAL)
        library.MKL_Set_Num_Threads(1)
        return library
    raise OSError("; ".join([*failures, HOW_TO_GET]))


class CompactBatch:
    """Matrices ``(N, d, d)`` in MKL's format, and two ways to invert them."""

    def __init__(self, library: ctypes.CDLL, matrices: Tensor) -> None:
        self.library = library
        self.count, self.d = matrices.shape[:2]
        self.format = int(library.mkl_get_format_compact())
        size = library.mkl_sget_size_compact(self.d, self.d, self.format, self.count)
        self.packed = torch.zeros(size // 4)
        self.right = torch.empty(0)  # right-hand sides for Cholesky
        self.work = torch.empty(max(1, self.d * self.d * 64))
        self.original = self._pack(matrices)
        self.packed.copy_(self.original)
        self.info = ctypes.c_int(0)

    def _pack(self, matrices: Tensor) -> Tensor:
        packed = torch.zeros_like(self.packed)
        self.library.mkl_sgepack_compact(
            COLUMN_MAJOR, self.d, self.d, _pointers(matrices), self.d, _address(packed), self.d,
            self.format, self.count,
        )  # fmt: skip
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """The matrices ``(N, d, d)`` of a packed batch; they have to be symmetric."""
        out = torch.empty(self.count, self.d, self.d)
        self.library.mkl_sgeunpack_compact(
            COLUMN_MAJOR, self.d, self.d, _pointers(out), self.d, _address(packed), self.d,
            self.format, self.count,
        )  # fmt: skip
        return out

    def invert_lu(self) -> None:
        """LU without pivoting, then the inverse, in place: a second call restores the matrix."""
        d, packed = self.d, _address(self.packed)
        info = ctypes.byref(self.info)
        self.library.mkl_sgetrfnp_compact(
            COLUMN_MAJOR, d, d, packed, d, info, self.format, self.count
        )
        self.library.mkl_sgetrinp_compact(
            COLUMN_MAJOR, d, packed, d, _address(self.work), self.work.numel(), info,
            self.format, self.count,
        )  # fmt: skip

    def prepare_cholesky(self) -> None:
        """Restores the matrices, and sets the right-hand sides to identities."""
        self.packed.copy_(self.original)
        if self.right.numel() == 0:
            self.identities = self._pack(torch.eye(self.d).repeat(self.count, 1, 1))
            self.right = torch.empty_like(self.identities)
        self.right.copy_(self.identities)

    def invert_cholesky(self) -> None:
        """Cholesky and two triangular solves: MKL Compact cannot invert from a Cholesky factor."""
        d, packed, right = self.d, _address(self.packed), _address(self.right)
        self.library.mkl_spotrf_compact(
            COLUMN_MAJOR, LOWER, d, packed, d, ctypes.byref(self.info), self.format, self.count
        )
        for transpose in (NO_TRANS, TRANS):
            self.library.mkl_strsm_compact(
                COLUMN_MAJOR, LEFT, LOWER, transpose, NON_UNIT, d, d, ctypes.c_float(1.0),
                packed, d, right, d, self.format, self.count,
            )  # fmt: skip


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


def _pointers(matrices: Tensor) -> ctypes.Array[ctypes.c_void_p]:
    count, d = matrices.shape[:2]
    addresses = matrices.data_ptr() + np.arange(count, dtype=np.uintp) * np.uintp(4 * d * d)
    return (ctypes.c_void_p * count).from_buffer(addresses.data)


def contenders(problem: Problem) -> list[Contender | Absent]:
    """Both ways to invert, on torch's number of threads."""
    name = "MKL Compact"
    if problem.device.type != "cpu":
        return [Absent(name, f"runs on the CPU only, not on {problem.device}")]
    try:
        library = load()
    except OSError as error:
        return [Absent(name, str(error))]
    matrices = problem.everywhere(problem.damped)
    threads = torch.get_num_threads()
    pool = ThreadPoolExecutor(threads)

    def batches() -> list[CompactBatch]:
        return [CompactBatch(library, chunk) for chunk in matrices.tensor_split(threads)]

    def on_all(method: Callable[[CompactBatch], None], chunks: list[CompactBatch]) -> None:
        if len(chunks) == 1:
            method(chunks[0])
        else:
            list(pool.map(method, chunks))

    lu, cholesky = batches(), batches()
    width = FORMATS.get(lu[0].format, str(lu[0].format))
    return [
        Contender(
            f"{name} ({width}) getrfnp + getrinp",
            Role.PEER,
            lambda: on_all(CompactBatch.invert_lu, lu),
            lambda _: check_inverse(problem, torch.cat([b.unpack(b.packed) for b in lu])),
            byte_model.inverse_bytes(problem.d),
        ),
        Contender(
            f"{name} ({width}) potrf + 2 trsm",
            Role.PEER,
            lambda: on_all(CompactBatch.invert_cholesky, cholesky),
            lambda _: check_inverse(problem, torch.cat([b.unpack(b.right) for b in cholesky])),
            byte_model.inverse_bytes(problem.d),
            prepare=lambda: on_all(CompactBatch.prepare_cholesky, cholesky),
        ),
    ]
