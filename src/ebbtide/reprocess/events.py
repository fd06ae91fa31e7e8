"""A plan, a chunk or a summary of a reprocess in, what every face says about it out; no Spark."""

from __future__ import annotations

import re

from ebbtide.reprocess.journal import ChunkReport

_CHUNK = re.compile(r"chunk \d+ of (\d+) (?:· |failed: )")
_DONE_BEFORE = re.compile(r"Run .*; (\d+) of (\d+) chunks are done\.$")
_RUN = re.compile(r"Run ([\w.-]+)(?:$|: )")
REFUSED = "This would be refused: "
"""How the line begins that says why a plan cannot be carried out."""


def say_chunk(report: ChunkReport, total: int) -> str:
    """What became of a chunk.

    >>> say_chunk(ChunkReport(3, "done", records=1200, results=40), 24)
    'chunk 3 of 24 · 1,200 records · 40 results'
    >>> say_chunk(ChunkReport(4, "failed", error="no space left"), 24)
    'chunk 4 of 24 failed: no space left'
    """
    if report.error:
        return f"chunk {report.number} of {total} failed: {report.error}"
    return (
        f"chunk {report.number} of {total} · {report.records:,} records · "
        f"{report.results:,} results"
    )


def say_begun(run: str) -> str:
    """A run has begun."""
    return f"Run {run}"


def say_done_before(run: str, what: str, done: int, chunks: int) -> str:
    """What a retry finds done."""
    return f"Run {run}: {what}; {done} of {chunks} chunks are done."


class Progress:
    """Reads how far a run is from the lines that it says.

    >>> progress = Progress()
    >>> [progress.read(line) for line in ("Run a1: …; 1 of 3 chunks are done.", "Starting Spark …")]
    [(1, 3), None]
    >>> progress.read("chunk 3 of 3 · 1,200 records · 40 results"), progress.run
    ((2, 3), 'a1')
    """

    def __init__(self) -> None:
        self._done = 0
        self.run: str | None = None
        """The run's name, once it was said."""

    def read(self, line: str) -> tuple[int, int] | None:
        """How many chunks are done and how many there are, if a line tells."""
        if (named := _RUN.match(line)) and self.run is None:
            self.run = named[1]
        if before := _DONE_BEFORE.match(line):
            self._done = int(before[1])
            return self._done, int(before[2])
        if chunk := _CHUNK.match(line):
            self._done += 1
            return self._done, int(chunk[1])
        return None
