"""Loads the compiled extension, or remembers why it is not there."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from types import ModuleType

import torch  # noqa: F401  the extension resolves torch's symbols through the loaded library


def _load() -> tuple[ModuleType | None, str]:
    try:
        return import_module("mbf_kernels._C"), ""
    except ImportError as error:
        note = Path(__file__).with_name("_build_failure.txt")
        if note.exists():
            return None, note.read_text().strip()
        return None, f"the compiled extension cannot be loaded: {error}"


EXTENSION, WHY_MISSING = _load()
