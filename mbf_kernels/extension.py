"""Loads the compiled extension: ``EXTENSION``, or None and the reason in ``WHY_MISSING``.

``BUILD_MESSAGES`` has what the compiler said if it could not be built, else it is empty.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch  # before the extension, which resolves torch's symbols in the loaded library

from .options import StepScalars

OPERATORS = (
    "spd_inverse",
    "update_",
    "invert_",
    "step_",
    "fused_step_",
    "shared_update_",
    "shared_step_",
)


def _read_note(note: str) -> tuple[str, str]:
    """The reason and the compiler's messages, as setup.py writes them after a failed build."""
    reason, _, messages = note.strip().partition("\n")
    if messages:
        reason += " (`python -m mbf_kernels` shows all of the compiler's messages)"
    return reason, messages


def _load() -> tuple[ModuleType | None, str, str]:
    try:
        extension = import_module("mbf_kernels._C")
    except ImportError as error:
        note = Path(__file__).with_name("_build_failure.txt")  # written by a build that failed
        if note.exists():
            return None, *_read_note(note.read_text(encoding="utf-8"))
        return None, f"the compiled extension cannot be loaded: {error}", ""
    # The operators take the scalars of a step as a list, so both sides must agree on its order.
    agrees = getattr(extension, "step_scalars", None) == list(StepScalars._fields)
    if not agrees or not all(hasattr(torch.ops.mbf_kernels, name) for name in OPERATORS):
        return None, "the compiled extension was built from other sources than this package", ""
    return extension, "", ""


EXTENSION, WHY_MISSING, BUILD_MESSAGES = _load()
