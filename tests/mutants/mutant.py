"""What a planted bug is."""

from dataclasses import dataclass
from pathlib import Path


class StaleError(Exception):
    """The source of a planted bug has changed; the message says what is missing."""


@dataclass(frozen=True)
class Mutant:
    """A change of one file that breaks something.

    Attributes:
        about: what goes wrong with it.
        path: the file, from the top of the project.
        old: text that is in the file once, and ``new`` in its place.
        tests: arguments of pytest, for the narrowest tests that should notice.
        survives: why no test can notice it; empty where one must.
    """

    name: str
    about: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]
    survives: str = ""

    def apply(self, root: Path) -> None:
        """Plants the bug in a copy of the project.

        Raises:
            StaleError: the text is not there, or more than once.
        """
        path = root / self.path
        text = path.read_text()
        count = text.count(self.old)
        if count != 1:
            raise StaleError(f"{self.path}: expected this once, found it {count} times: {self.old}")
        path.write_text(text.replace(self.old, self.new))
