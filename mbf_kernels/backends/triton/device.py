"""The device that kernels are compiled for and launched on."""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget

# Triton itself settles this when it is imported.
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


def target(device: torch.device) -> GPUTarget:
    """The target of Triton's compiler for tensors on ``device``; raises if it is another one."""
    if INTERPRETED:
        return GPUTarget("interpreter", 0, 32)
    driver = triton.runtime.driver.active
    if driver.get_active_torch_device().type != device.type:
        raise RuntimeError(
            f"backend 'triton' was asked for, but the tensors are on {device} and it compiles for "
            f"{driver.get_active_torch_device()}"
        )
    with on(device):  # the driver tells the target of the current device
        return driver.get_current_target()


# Those of an A100. It stands for a card that torch cannot describe: without a GPU, in tests.
USUAL_MULTIPROCESSORS = 108


@cache
def multiprocessors(device: torch.device) -> int:
    """How many programs of a launch run on processors of their own."""
    if device.type != "cuda":
        return USUAL_MULTIPROCESSORS
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def on(device: torch.device) -> Any:
    """A context in which Triton launches on ``device``."""
    return torch.cuda.device(device if device.type == "cuda" else -1)
