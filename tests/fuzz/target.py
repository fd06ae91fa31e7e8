"""A target of the campaign: a parser, what it is given at first, and what it may raise."""

from __future__ import annotations

import atexit
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from shutil import rmtree

from ebbtide.errors import EbbtideError
from tests.inside import MEMORY

_HERE = b"/@here@"


@dataclass(frozen=True)
class Target:
    """Something that reads what others wrote.

    `run` is a function of bytes. It may raise `EbbtideError`, and `documented`: what the function
    under test says that it raises, because its callers inside Ebbtide expect just that.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    """Values that Spark, Kafka's clients or our own code have written."""
    run: Callable[[bytes], object]
    documented: tuple[type[Exception], ...] = ()
    share: int = 20
    """How many of the campaign's cases it gets, beside those of the others: less if it is slow."""
    largest: int = 1 << 16
    """The longest input."""
    native: bool = False
    """A library in Rust reads it, and ends the process if it gets no memory: what the process takes
    is measured then, not limited."""

    def values(self) -> list[bytes]:
        """The seeds, without the name of this process's folder: an input fails in another, too."""
        here = str(scratch()).encode()
        return [data.replace(here, _HERE) for data in self.seeds()]

    def play(self, data: bytes) -> None:
        """Run a case."""
        self.run(data.replace(_HERE, str(scratch()).encode()))

    @property
    def allowed(self) -> tuple[type[Exception], ...]:
        """What a case may raise."""
        return (EbbtideError, *self.documented)


@cache
def scratch() -> Path:
    """A folder in memory for files that this process gives to parsers; gone when it ends."""
    owner, folder = os.getpid(), Path(tempfile.mkdtemp(prefix="ebbtide-fuzz-", dir=MEMORY))

    def remove() -> None:
        if os.getpid() == owner:  # not a child's
            rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder


def to_text(data: bytes) -> str:
    """As `Folder.read` decodes a file."""
    return data.decode("utf-8", "replace")
