"""Which implementation serves a call: ``cpu``, ``cuda``, ``triton`` or ``torch``.

The choice follows the device. :func:`use_backend` and the environment variable ``MBF_BACKEND``
override it; an explicit choice that cannot serve is an error that says why.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache

import torch

from ._extension import EXTENSION, WHY_MISSING

NAMES = ("cpu", "cuda", "triton", "torch")

_forced: ContextVar[str | None] = ContextVar("mbf_backend", default=None)
_warned: set[str] = set()


@dataclass(frozen=True)
class Availability:
    """True or False, with the words to go with it."""

    available: bool
    reason: str

    def __bool__(self) -> bool:
        return self.available

    def __str__(self) -> str:
        return f"available: {self.reason}" if self.available else f"not available: {self.reason}"


def backends() -> dict[str, Availability]:
    """Every backend by name, and whether it can be used here or why not.

    >>> import mbf_kernels as mk
    >>> bool(mk.backends()["torch"])
    True
    """
    return {
        "cpu": _cpu(),
        "cuda": _cuda(),
        "triton": _triton(),
        "torch": Availability(True, f"plain torch {torch.__version__}"),
    }


def _cpu() -> Availability:
    if EXTENSION is None:
        return Availability(False, WHY_MISSING)
    return Availability(True, f"instruction set {EXTENSION.current_isa()}")


def _cuda() -> Availability:
    if EXTENSION is None:
        return Availability(False, WHY_MISSING)
    built = ", ".join(EXTENSION.cuda_architectures)
    if not built:
        return Availability(
            False,
            "this build has no CUDA kernels; installing next to nvcc and a CUDA build of torch "
            "compiles them (MBF_CUDA=1 insists)",
        )
    if not torch.cuda.is_available():
        return Availability(False, f"built for {built}, but torch sees no CUDA device")
    return Availability(True, f"built for {built}")


def _triton() -> Availability:
    from . import triton  # here, so that importing this package does not look for Triton

    return Availability(*triton.available())


def _require(name: str, source: str) -> None:
    if name not in NAMES:
        raise ValueError(f"{source}: expected one of {', '.join(NAMES)}, got {name!r}")
    status = backends()[name]
    if not status:
        raise RuntimeError(f"{source}: backend {name!r} is {status}")


@contextmanager
def use_backend(name: str) -> Iterator[None]:
    """Use one backend inside a ``with`` block, whatever the device would choose.

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


def explicit() -> str | None:
    """The backend that was asked for by name, if one was."""
    name = _forced.get()
    if name is None:
        name = os.environ.get("MBF_BACKEND")
        if name:
            _require(name, "MBF_BACKEND")
    return name or None


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator]  # torch has no types here
def resolve(device: torch.device) -> str:
    """The backend that serves tensors on ``device`` now; torch.compile asks while tracing."""
    name = explicit()
    if name:
        if name in ("cpu", "cuda") and device.type != name:
            raise RuntimeError(f"backend {name!r} was asked for, but the tensors are on {device}")
        return name
    if device.type == "cpu":
        if EXTENSION is not None:
            return "cpu"
        _warn_once("cpu", f"no compiled CPU kernels ({WHY_MISSING}); plain torch is used instead")
        return "torch"
    return _for_accelerator(device.type)


@cache
def _for_accelerator(device_type: str) -> str:
    """cuda if it was built, else triton, else torch with a word on how to get a fast one."""
    found = {name: status for name, status in backends().items() if name in ("cuda", "triton")}
    if device_type == "cuda":
        for name, status in found.items():
            if status:
                return name
    reasons = "; ".join(f"{name}: {status.reason}" for name, status in found.items())
    _warn_once(
        device_type,
        f"no fast kernels for tensors on {device_type}, plain torch is used. To get them, "
        f"`pip install triton` is the shortest way. {reasons}",
    )
    return "torch"


def _warn_once(key: str, text: str) -> None:
    if key not in _warned:
        _warned.add(key)
        warnings.warn(f"mbf_kernels: {text}", RuntimeWarning, stacklevel=4)
