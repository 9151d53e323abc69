"""The compiled operators as Python sees them: fake implementations for torch's tracing tools.

Schemas and CPU kernels are in ``csrc/bindings.cpp``. What can be told from shapes alone is told
here, so that ``torch.compile`` and ``torch.library.opcheck`` work without running a kernel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ._extension import EXTENSION


def _spd_inverse_fake(matrices: Tensor, damping: float) -> tuple[Tensor, Tensor]:
    shape = matrices.shape
    if matrices.dim() < 2 or shape[-1] != shape[-2]:
        raise ValueError(f"matrices: expected square matrices (..., d, d), got {tuple(shape)}")
    inverse = torch.empty(shape, dtype=matrices.dtype, device=matrices.device)
    return inverse, torch.empty(shape[:-2], dtype=torch.int32, device=matrices.device)


def _writes_only(*args: object) -> None:
    """All other operators return nothing: their schemas say what they write.

    torch also comes here when one argument of a real call is on the meta device.
    """
    lists = [arg if isinstance(arg, list) else [arg] for arg in args]
    devices = {
        tensor.device for tensors in lists for tensor in tensors if isinstance(tensor, Tensor)
    }
    if len(devices) > 1:
        raise RuntimeError(f"expected all tensors on one device, got {sorted(map(str, devices))}")


if EXTENSION is not None:
    torch.library.register_fake("mbf_kernels::spd_inverse")(_spd_inverse_fake)
    for _name in ("update_", "invert_", "step_", "fused_step_"):
        torch.library.register_fake(f"mbf_kernels::{_name}")(_writes_only)
