"""What the kernels are compiled for and launched on."""

from __future__ import annotations

import os
from typing import Any

import torch
import triton


def target() -> tuple[str, int]:
    """The backend of the compiler, and its warp size."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "interpreter", 32
    found = triton.runtime.driver.active.get_current_target()
    return found.backend, found.warp_size


def on(device: torch.device) -> Any:
    """Makes a device the current one, on which Triton launches."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
