"""Cuts PTX text into tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.ptx.program import PtxError

TOKEN = re.compile(
    r"""
    (?P<newline>\n)
  | (?P<space>[ \t\r]+)
  | (?P<number>0[fF][0-9a-fA-F]{8} | 0[dD][0-9a-fA-F]{16} | 0[xX][0-9a-fA-F]+U? | 0[bB][01]+U?
               | [0-9]+U?)
  | (?P<word>[.%$_A-Za-z][\w$%]*(?:(?:\.|::)[\w$]+)*)
  | (?P<string>"[^"\n]*")
  | (?P<mark>[{}\[\](),;:|!@+\-=<>])
    """,
    re.VERBOSE,
)
COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
DEBUG_SECTION = re.compile(r"^\s*\.section\b.*?\}", re.DOTALL | re.MULTILINE)
# Lines without a meaning for the execution.
IGNORED = re.compile(r"^\s*\.(loc|file|version|target|address_size)\b[^\n]*", re.MULTILINE)


@dataclass(frozen=True)
class Token:
    kind: str  # number, word, string or mark
    text: str
    line: int


def tokens_of(text: str) -> list[Token]:
    for left_out in (COMMENT, DEBUG_SECTION, IGNORED):
        text = left_out.sub(lambda match: "\n" * match.group().count("\n"), text)
    found, line, end = [], 1, 0
    for match in TOKEN.finditer(text):
        if match.start() != end:
            break
        end = match.end()
        kind = match.lastgroup or ""
        if kind == "newline":
            line += 1
        elif kind != "space":
            found.append(Token(kind, match.group(), line))
    if end != len(text):
        raise PtxError(f"line {line}: cannot read {text[end : end + 30]!r}")
    return found
