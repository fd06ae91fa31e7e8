"""Checks that a plan makes before anything changes, and their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any


class _TextEnum(str, Enum):
    def __str__(self) -> str:
        return str(self.value)


class Verdict(_TextEnum):
    """Whether a check lets a plan pass."""

    OK = "ok"
    WARN = "warn"
    REFUSE = "refuse"


class CheckKind(_TextEnum):
    """What a check is about; its value is the name that is shown."""

    RUNNING = "not running"
    OFFSETS = "offsets"
    STATE = "state"
    TRIGGER = "trigger"
    WRITABLE = "writable"
    UNKNOWN_FILES = "known files"
    KAFKA = "kafka"
    COMPACTION = "compaction"
    DELTA_SOURCE = "delta source"
    FILE_SOURCE = "files"
    RATE_SOURCE = "rate source"
    OTHER_SOURCE = "source"
    SINK = "sink"
    RANGE = "range"
    ARCHIVE = "archive"
    ARRIVED = "arrived"
    LIVE_STREAM = "live stream"
    COMPARISON = "comparison"
    OUTPUT = "output"

    @property
    def is_source(self) -> bool:
        """Whether it asks if a source still holds what is read again."""
        return self in _SOURCES

    def ok(self, detail: str) -> Check:
        """A check that lets the plan pass.

        >>> CheckKind.STATE.refuse("version 5 does not load", "Choose a later batch.").advice
        'version 5 does not load. Choose a later batch.'
        """
        return Check(self, OK, detail)

    def warn(self, detail: str, next_step: str = "") -> Check:
        """A check that lets the plan pass, with a warning."""
        return Check(self, WARN, detail, next_step)

    def refuse(self, detail: str, next_step: str = "") -> Check:
        """A check that stops the plan."""
        return Check(self, REFUSE, detail, next_step)


_SOURCES = {
    CheckKind.KAFKA,
    CheckKind.DELTA_SOURCE,
    CheckKind.FILE_SOURCE,
    CheckKind.RATE_SOURCE,
    CheckKind.OTHER_SOURCE,
}
OK, WARN, REFUSE = Verdict.OK, Verdict.WARN, Verdict.REFUSE


@dataclass(frozen=True)
class Check:
    """One question and its answer.

    >>> Check(CheckKind.STATE, REFUSE, "version 5 does not load").to_dict()["verdict"]
    'refuse'
    """

    kind: CheckKind
    verdict: Verdict
    detail: str
    next: str = ""

    @property
    def name(self) -> str:
        """The name that is shown."""
        return str(self.kind)

    @property
    def advice(self) -> str:
        """The detail, and what to do about it."""
        return f"{self.detail}. {self.next}".strip()

    def to_dict(self) -> dict[str, Any]:
        """As plain values; `from_dict` reads them back."""
        verdict = str(self.verdict)
        return {"name": self.name, "verdict": verdict, "detail": self.detail, "next": self.next}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Check:
        """From plain values."""
        kind, verdict = CheckKind(values["name"]), Verdict(values["verdict"])
        return cls(kind, verdict, values["detail"], values["next"])


SAME, COMPATIBLE, BREAKS = "same", "compatible", "breaks"
"""Verdicts: nothing has changed; it has, or may have, and Spark goes on; the query cannot go on."""
GOES_ON, IGNORES = "goes on", "ignores it"
REFUSES, MISBINDS = "refuses", "misbinds"
"""What Spark does: it does not start, or it starts and the results are wrong."""


@dataclass(frozen=True)
class PartVerdict:
    """One part of new code, compared with the checkpoint from which it is to go on.

    >>> PartVerdict.breaks("sources", "1 in the checkpoint, 2 in the query").spark
    'refuses'
    """

    part: str
    verdict: str
    detail: str
    spark: str = GOES_ON
    """What Spark does."""
    next: str = ""
    """The way out, where there is one of its own."""

    @classmethod
    def same(cls, part: str, detail: str) -> PartVerdict:
        """Nothing has changed."""
        return cls(part, SAME, detail)

    @classmethod
    def compatible(cls, part: str, detail: str, spark: str = GOES_ON) -> PartVerdict:
        """Something has changed, or may have, and the query can go on."""
        return cls(part, COMPATIBLE, detail, spark)

    @classmethod
    def breaks(cls, part: str, detail: str, spark: str = REFUSES, next_: str = "") -> PartVerdict:
        """The query cannot go on: Spark refuses, or its results are wrong."""
        return cls(part, BREAKS, detail, spark, next_)
