"""What the kernels are compiled for and launched on."""

from __future__ import annotations

import os
from typing import Any

import torch
import triton


def target(device: torch.device) -> tuple[str, int]:
    """The backend of the compiler that serves tensors on a device, and its warp size."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return "interpreter", 32
    driver = triton.runtime.driver.active
    if driver.get_active_torch_device().type != device.type:
        raise RuntimeError(
            f"backend 'triton' was asked for, but the tensors are on {device} and it compiles for "
            f"{driver.get_active_torch_device()}"
        )
    found = driver.get_current_target()
    return found.backend, found.warp_size


def on(device: torch.device) -> Any:
    """Makes a device the current one, on which Triton launches."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
