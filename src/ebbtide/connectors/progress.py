"""Read our metrics about a batch's records from its progress."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METRICS = "ebbtide"
"""The metric that counts broken records."""
EARLIEST, LATEST = "earliest", "latest"
"""Its fields with the event times of the good records, in microseconds since 1970."""
READ = "ebbtide-read"
"""The metric that says which of its records a batch has read."""
DIGEST = "ebbtide-output"
"""The metric with the digest of the rows that a batch wrote."""


@dataclass(frozen=True)
class Output:
    """What a batch wrote: the number of rows, and a digest that ignores their order."""

    rows: int
    digest: str


@dataclass(frozen=True)
class LateRecords:
    """Records that batches dropped because the watermark had passed them.

    >>> hour = ("2025-09-04T07:00:00.000Z", "2025-09-04T08:00:00.000Z")
    >>> LateRecords(3, times=hour).plus(LateRecords(2, exact=False))
    LateRecords(records=5, exact=False, times=None)
    >>> str(LateRecords(1200)), str(LateRecords(3, exact=False))
    ('1,200', 'about 3')
    """

    records: int
    exact: bool = True
    """If not, it is a number of rows: often Spark's, in which those of one group count once."""
    times: tuple[str, str] | None = None
    """The start of the first window that lacks one and the end of the last; None if unknown."""

    def __str__(self) -> str:
        return f"{'' if self.exact else 'about '}{self.records:,}"

    def plus(self, later: LateRecords | None) -> LateRecords:
        """The records of both."""
        if later is None or not (self.records and later.records):
            return self if later is None or self.records else later
        both = (self.times, later.times)
        times = None if None in both else _join(*[pair for pair in both if pair is not None])
        return LateRecords(self.records + later.records, self.exact and later.exact, times)


def _join(one: tuple[str, str], other: tuple[str, str]) -> tuple[str, str]:
    return min(one[0], other[0]), max(one[1], other[1])


def read_output(progress: Mapping[str, Any]) -> Output | None:
    """What a batch wrote; None if its progress does not say.

    >>> read_output({"observedMetrics": {DIGEST: {"rows": 0}}}).rows
    0
    >>> read_output({"observedMetrics": {}}) is None
    True
    """
    observed = progress.get("observedMetrics", {}).get(DIGEST)
    if observed is None:
        return None
    rows, total = (int(observed.get(name) or 0) for name in ("rows", "sum"))
    return Output(rows, hashlib.sha256(f"{rows} {total}".encode()).hexdigest()[:32])


def was_read_whole(progress: Mapping[str, Any]) -> bool:
    """Whether a batch was read once and to its end; if in doubt, not.

    A function of the user's may read its batch never, in part (`take`), or twice, and Spark counts
    the records each time. Parts may have as many records as the whole, but they do not weigh as
    much: a part is the beginning of partitions, and each partition has a weight of its own. What
    goes to Python is read ahead, so the decoder must have seen as many records.
    """
    observed = progress.get("observedMetrics", {})
    read = observed.get(READ)
    if read is None:
        return True
    if observed.get(METRICS, {}).get("records", 0) != read.get("records", 0):
        return False
    source = progress["sources"][0]
    start, end = (_by_partition(source[name]) for name in ("startOffset", "endOffset"))
    # where the first batch began, or a partition that is new, only the checkpoint knows
    if start.keys() != end.keys():
        return False
    ranges = {partition: (start[partition], end[partition]) for partition in end}
    records = sum(last - first for first, last in ranges.values())
    weighed = sum(
        zlib.crc32(partition.encode()) * ((first + last + 1) * (last - first) // 2)
        for partition, (first, last) in ranges.items()
    )
    return (read.get("records", 0), int(read.get("weighed") or 0)) == (records, weighed)


def _by_partition(offset: Mapping[str, Mapping[str, int]] | None) -> dict[str, int]:
    return {p: end for partitions in (offset or {}).values() for p, end in partitions.items()}
