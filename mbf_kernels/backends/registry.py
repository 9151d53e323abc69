"""The list of backends, and which of them serves a call.

The device decides. :func:`use_backend` and the environment variable ``MBF_BACKEND`` (read once, at
the first call) override that; if the backend they name cannot serve a call, an error says why.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from importlib import import_module

import torch

from ..layout import MAX_SMALL_BLOCK
from .backend import Availability, Backend
from .large import LARGE
from .reference import TORCH

# In order of preference. Each module lists its backends in BACKENDS.
MODULES = ("compiled", "triton", "reference")

BACKENDS: dict[str, Backend] = {
    backend.name: backend
    for module in MODULES
    for backend in import_module(f"{__package__}.{module}").BACKENDS
}

_forced: ContextVar[str | None] = ContextVar("mbf_backend", default=None)


def backends() -> dict[str, Availability]:
    """All backends by name, in order of preference, and whether each can be used here and why.

    The names are ``cpu``, ``cuda``, ``triton`` and ``torch``. A call is served by the first
    available backend that is made for the device of its tensors; ``torch`` serves any device.

    >>> import mbf_kernels as mk
    >>> bool(mk.backends()["torch"])
    True
    """
    return {name: backend.availability() for name, backend in BACKENDS.items()}


def backends_for(device: torch.device) -> list[str]:
    """The names of the backends made for a device, available or not, in order of preference."""
    return [
        name
        for name, backend in BACKENDS.items()
        if backend.devices is None or device.type in backend.devices
    ]


def _require(name: str, source: str) -> None:
    if name not in BACKENDS:
        raise ValueError(f"{source}: expected one of {', '.join(BACKENDS)}, got {name!r}")
    status = BACKENDS[name].availability()
    if not status:
        raise RuntimeError(f"{source}: backend {name!r} is {status}")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Uses the backend of this name inside a ``with`` block, whatever the device.

    It overrides ``MBF_BACKEND`` and holds for the current thread or asynchronous task. Blocks
    larger than ``MAX_FUSED_BLOCK`` go to torch's LAPACK all the same. Raises ``ValueError`` for an
    unknown name and ``RuntimeError`` for a backend that is not available (see :func:`backends`).
    Calls inside raise ``RuntimeError`` if the backend cannot serve their device or dtype.

    >>> import torch, mbf_kernels as mk
    >>> with mk.use_backend("torch"):
    ...     inverse, info = mk.spd_inverse(4 * torch.eye(3))
    >>> inverse[0, 0].item()
    0.25
    """
    _require(name, "use_backend")
    token = _forced.set(name)
    try:
        yield
    finally:
        _forced.reset(token)


@cache
def _of_environment() -> str | None:
    name = os.environ.get("MBF_BACKEND")
    if name:
        _require(name, "MBF_BACKEND")
    return name or None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def resolve(device: torch.device) -> str:
    """The name of the backend that serves small float32 blocks on ``device`` at present.

    torch.compile calls this while it traces and takes the result for a constant.
    """
    name = _forced.get() or _of_environment()
    if name is None:
        return _automatic(device.type)
    if BACKENDS[name].refuses(device):
        raise RuntimeError(f"backend {name!r} was asked for, but the tensors are on {device}")
    return name


def backend_for(device: torch.device, block_size: int, dtype: torch.dtype) -> Backend:
    """The backend that serves blocks of this size on this device, with statistics in ``dtype``."""
    backend = BACKENDS[resolve(device)]
    if block_size > MAX_SMALL_BLOCK and not backend.serves_large_blocks:
        return LARGE
    if dtype == torch.float64 and not backend.serves_float64:
        return _for_float64(backend.name)
    return backend


def shared_backend_for(device: torch.device, width: int, dtype: torch.dtype) -> Backend:
    """The backend that serves pieces of rows of up to this width; plain torch serves the rest."""
    backend = BACKENDS[resolve(device)]
    most = backend.max_shared_block
    if most is not None and width > most:
        return TORCH
    if dtype == torch.float64 and not backend.serves_float64:
        return _for_float64(backend.name)
    return backend


def elementwise_backend_for(device: torch.device, dtype: torch.dtype) -> Backend:
    """The backend that steps single elements, with averages in ``dtype``.

    Not every backend does: then it is another one that is made for the device, or plain torch.
    """
    forced = _forced.get() or _of_environment()
    names = [forced] if forced else backends_for(device)
    for name in names:
        backend = BACKENDS[name]
        fits = backend.serves_elements and (dtype != torch.float64 or backend.serves_float64)
        if fits and backend.availability():
            return backend
    return TORCH


def _for_float64(name: str) -> Backend:
    """Plain torch instead of a backend that was not asked for by name."""
    if _forced.get() or _of_environment():
        raise RuntimeError(
            f"backend {name!r} computes in float32 and was asked for float64; the backend 'torch' "
            "serves it on every device"
        )
    return TORCH


@cache
def _automatic(device_type: str) -> str:
    """The first available backend made for this type of device; else torch, with a warning."""
    fast = {name: b.availability() for name, b in BACKENDS.items() if b.devices is not None}
    for name, status in fast.items():
        if status and device_type in (BACKENDS[name].devices or ()):
            return name
    if device_type == "cpu":
        text = f"no compiled CPU kernels ({fast['cpu'].reason}); plain torch is used instead"
    else:
        reasons = "; ".join(f"{n}: {s.reason}" for n, s in fast.items() if n != "cpu")
        text = (
            f"no fast kernels for tensors on {device_type}, plain torch is used. To get them, "
            f"`pip install triton` is the shortest way. {reasons}"
        )
    warnings.warn(f"mbf_kernels: {text}", RuntimeWarning, stacklevel=4)
    return TORCH.name
