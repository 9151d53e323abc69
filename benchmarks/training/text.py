"""Text as symbols, and where it comes from."""

from __future__ import annotations

import string
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..common.data.images import DataError

# Printable ASCII; one more symbol stands for everything else.
ALPHABET = string.printable
SYMBOLS = len(ALPHABET) + 1
TEST_SHARE = 10  # the last tenth is for tests
MOST_CHARACTERS = 4_000_000
LEAST_CHARACTERS = 10_000


@dataclass(frozen=True)
class Text:
    """Training and test text, a symbol below ``SYMBOLS`` per character, uint8."""

    source: str
    train: Tensor
    test: Tensor
    advice: str = ""

    def __str__(self) -> str:
        return f"{self.source}: {len(self.train):,} training and {len(self.test):,} test characters"


def encoded(text: str) -> Tensor:
    """The symbols of a text."""
    places = {character: i for i, character in enumerate(ALPHABET)}
    codes = [places.get(character, SYMBOLS - 1) for character in text]
    return torch.tensor(codes, dtype=torch.uint8)


def load_text(folder: Path | None) -> Text:
    """The text files of a folder, or the modules of Python's own standard library.

    Raises:
        DataError: there is no folder, or too little text in it.
    """
    if folder is None:
        place, pattern = Path(sysconfig.get_paths()["stdlib"]), "*.py"
        source = f"standard library of Python {sysconfig.get_python_version()}"
    else:
        place, pattern, source = folder, "*", str(folder)
        if not folder.is_dir():
            raise DataError(f"{folder}: expected a folder with text files")
    parts: list[str] = []
    for path in sorted(p for p in place.glob(pattern) if p.is_file()):
        parts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, parts)) >= MOST_CHARACTERS:
            break
    text = "".join(parts)[:MOST_CHARACTERS]
    if len(text) < LEAST_CHARACTERS:
        raise DataError(
            f"{place}: expected at least {LEAST_CHARACTERS:,} characters of text in {pattern}, "
            f"got {len(text):,}"
        )
    symbols = encoded(text)
    cut = len(symbols) - len(symbols) // TEST_SHARE
    return Text(source, symbols[:cut], symbols[cut:])
