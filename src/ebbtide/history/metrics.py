"""The metrics of a query, under the same names in Prometheus, the web UI and Grafana.

An unknown value is absent, never zero or NaN.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from ebbtide.errors import UsageError
from ebbtide.history.store import Entry
from ebbtide.times import EPOCH, parse_time

BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
"""The upper bounds of the histogram of durations, in seconds."""
WHOLE = "triggerExecution"
"""Spark's name for the total duration of a batch."""


@dataclass(frozen=True)
class Measure:
    """A metric. Every metric has the label `pipeline` besides its own."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()

    @property
    def served(self) -> tuple[str, ...]:
        """The names of its series.

        >>> TOOK.served[0], BATCHES.served
        ('ebbtide_trigger_execution_seconds_bucket', ('ebbtide_batches_total',))
        """
        suffixes = ("_bucket", "_sum", "_count") if self.kind == "histogram" else ("",)
        return tuple(f"{self.name}{suffix}" for suffix in suffixes)


INFO = Measure(
    "ebbtide_info", "gauge", "1; its labels say which versions run.", ("version", "spark")
)
RUNNING = Measure("ebbtide_running", "gauge", "1 while the query runs, 0 before and after.")
BATCHES = Measure("ebbtide_batches_total", "counter", "Batches that ended.")
ROWS = Measure("ebbtide_rows_total", "counter", "Records read.")
BROKEN = Measure("ebbtide_broken_records_total", "counter", "Records set aside as broken.")
LATE = Measure(
    "ebbtide_late_records_total",
    "counter",
    "Records dropped because the watermark had passed them.",
)
OUTPUT = Measure("ebbtide_output_rows_total", "counter", "Rows written, where that can be seen.")
LAST = Measure("ebbtide_last_batch", "gauge", "The number of the last batch.")
LAST_AT = Measure("ebbtide_last_batch_timestamp_seconds", "gauge", "When the last batch ended.")
PHASES = Measure(
    "ebbtide_batch_duration_seconds",
    "gauge",
    "How long the last batch took, by Spark's names; triggerExecution is the whole.",
    ("phase",),
)
TOOK = Measure(
    "ebbtide_trigger_execution_seconds", "histogram", "How long batches took, from trigger to end."
)
LAG = Measure(
    "ebbtide_lag_records",
    "gauge",
    "How far the topic's end was ahead of the last batch's when it was planned (Kafka).",
)
WATERMARK_AT = Measure(
    "ebbtide_watermark_timestamp_seconds", "gauge", "The watermark with which the last batch ran."
)
WATERMARK_DELAY = Measure(
    "ebbtide_watermark_delay_seconds",
    "gauge",
    "From that watermark to the end of the last batch by the wall clock.",
)
EVENT_AT = Measure(
    "ebbtide_event_time_latest_timestamp_seconds",
    "gauge",
    "The latest event time in the last batch.",
)
STATE_ROWS = Measure("ebbtide_state_rows", "gauge", "Rows in the state.", ("operator",))
STATE_BYTES = Measure("ebbtide_state_bytes", "gauge", "Memory that the state takes.", ("operator",))
UPDATED = Measure(
    "ebbtide_state_updated_rows_total", "counter", "Rows of the state written.", ("operator",)
)
REMOVED = Measure(
    "ebbtide_state_removed_rows_total", "counter", "Rows of the state removed.", ("operator",)
)
DROPPED = Measure(
    "ebbtide_late_rows_dropped_total",
    "counter",
    "Late rows dropped as Spark counts them, those of one group as one.",
    ("operator",),
)

MEASURES = (
    *(INFO, RUNNING, BATCHES, ROWS, BROKEN, LATE, OUTPUT, LAST, LAST_AT, PHASES, TOOK, LAG),
    *(WATERMARK_AT, WATERMARK_DELAY, EVENT_AT, STATE_ROWS, STATE_BYTES, UPDATED, REMOVED, DROPPED),
)
"""All metrics, in the order in which they are shown."""
_COUNTED = {"updated": UPDATED, "removed": REMOVED, "dropped": DROPPED}
_NOW = {"rows": STATE_ROWS, "bytes": STATE_BYTES}


@dataclass(frozen=True)
class Sample:
    """One value of a measure."""

    measure: Measure
    value: float
    labels: Mapping[str, str] = field(default_factory=dict)
    suffix: str = ""

    @property
    def name(self) -> str:
        """The name of its series."""
        return f"{self.measure.name}{self.suffix}"


State = Mapping[str, Mapping[str, int]]
"""By operator: rows updated, removed and dropped as late."""


@dataclass(frozen=True)
class BatchTotals:
    """The totals of some batches, and the last of them.

    >>> tally = count([Entry(0, "origin", "", "", (), rows=5), Entry(1, "origin", "", "", (), 7)])
    >>> tally.batches, tally.rows, tally.last.batch
    (2, 12, 1)
    """

    batches: int = 0
    rows: int = 0
    broken: int = 0
    late: int | None = None
    """None as long as no batch knows how many it dropped; see `LateRecords`."""
    output_rows: int | None = None
    """None as long as no batch knows its output."""
    state: State = field(default_factory=dict)
    took: tuple[int, ...] = (0,) * (len(BUCKETS) + 1)
    """The number of batches by duration: one for each bucket, and one for those beyond."""
    seconds: float = 0.0
    last: Entry | None = None

    def __add__(self, later: BatchTotals) -> BatchTotals:
        """The totals of both."""
        return BatchTotals(
            self.batches + later.batches,
            self.rows + later.rows,
            self.broken + later.broken,
            _add_known(self.late, later.late),
            _add_known(self.output_rows, later.output_rows),
            _add_state(self.state, later.state),
            tuple(map(sum, zip(self.took, later.took, strict=True))),
            self.seconds + later.seconds,
            later.last or self.last,
        )

    def samples(self) -> Iterator[Sample]:
        """All known values, in the order of `MEASURES`."""
        yield Sample(BATCHES, self.batches)
        yield Sample(ROWS, self.rows)
        yield Sample(BROKEN, self.broken)
        yield from _if_known(LATE, self.late)
        yield from _if_known(OUTPUT, self.output_rows)
        if self.last is not None:
            yield from _describe(self.last, self._took())
            for what, measure in _COUNTED.items():
                for operator, counts in self.state.items():
                    yield Sample(measure, counts[what], {"operator": operator})

    def _took(self) -> Iterator[Sample]:
        bounds = (*map(str, BUCKETS), "+Inf")
        for bound, batches in zip(bounds, accumulate(self.took), strict=True):
            yield Sample(TOOK, batches, {"le": bound}, "_bucket")
        yield Sample(TOOK, self.seconds, suffix="_sum")
        yield Sample(TOOK, sum(self.took), suffix="_count")


def count(entries: Sequence[Entry]) -> BatchTotals:
    """The totals of some batches, oldest first."""
    seconds = [taken for entry in entries if (taken := duration(entry)) is not None]
    took = Counter(bisect_left(BUCKETS, taken) for taken in seconds)
    return BatchTotals(
        len(entries),
        sum(entry.rows for entry in entries),
        sum(entry.broken for entry in entries),
        _add_known(*(entry.late.records for entry in entries if entry.late)),
        _add_known(*(entry.output.rows for entry in entries if entry.output)),
        _count_state(entries),
        tuple(took[bucket] for bucket in range(len(BUCKETS) + 1)),
        sum(seconds),
        entries[-1] if entries else None,
    )


def _add_known(*counts: int | None) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _describe(entry: Entry, took: Iterable[Sample]) -> Iterator[Sample]:
    """The values of the last batch, with the histogram of durations in its place."""
    yield Sample(LAST, entry.batch)
    yield from _if_known(LAST_AT, to_seconds(entry.ended))
    for phase, milliseconds in sorted(entry.durations.items()):
        yield Sample(PHASES, milliseconds / 1000, {"phase": phase})
    yield from took
    yield from _if_known(LAG, entry.lag)
    yield from _if_known(WATERMARK_AT, to_seconds(entry.watermark))
    yield from _if_known(WATERMARK_DELAY, watermark_delay(entry))
    if entry.event_times is not None:
        yield from _if_known(EVENT_AT, to_seconds(entry.event_times[1]))
    for what, measure in _NOW.items():
        for name, operator in name_operators(entry.state).items():
            yield from _if_known(measure, operator.get(what), operator=name)


def _if_known(measure: Measure, value: float | str | None, **labels: str) -> Iterator[Sample]:
    if isinstance(value, int | float):
        yield Sample(measure, value, labels)


def _count_state(entries: Iterable[Entry]) -> State:
    by_operator: dict[str, dict[str, int]] = {}
    for entry in entries:
        for name, operator in name_operators(entry.state).items():
            counts = by_operator.setdefault(name, dict.fromkeys(_COUNTED, 0))
            for what in _COUNTED:
                counts[what] += int(operator.get(what, 0))
    return by_operator


def _add_state(one: State, other: State) -> State:
    return {
        name: {
            what: sum(state.get(name, {}).get(what, 0) for state in (one, other))
            for what in _COUNTED
        }
        for name in {**one, **other}
    }


def name_operators(
    state: Sequence[Mapping[str, int | str]],
) -> dict[str, Mapping[str, int | str]]:
    """Operators by name; a second one of the same kind gets a number.

    >>> list(name_operators([{"operator": "dedupe"}, {"operator": "dedupe"}]))
    ['dedupe', 'dedupe-2']
    """
    named: dict[str, Mapping[str, int | str]] = {}
    for operator in state:
        kind = str(operator.get("operator", "state"))
        name, number = kind, 1
        while name in named:
            number += 1
            name = f"{kind}-{number}"
        named[name] = operator
    return named


def duration(entry: Entry) -> float | None:
    """The duration of a batch in seconds."""
    milliseconds = entry.durations.get(WHOLE)
    return None if milliseconds is None else milliseconds / 1000


def watermark_delay(entry: Entry) -> float | None:
    """How many seconds the watermark was behind the wall clock at the end of a batch.

    >>> watermark_delay(Entry(0, "origin", "", "2026-01-05T10:00:00Z", (), 0))
    >>> at = "2026-01-05T09:50:00Z"
    >>> watermark_delay(Entry(0, "origin", "", "2026-01-05T10:00:00Z", (), 0, watermark=at))
    600.0
    """
    ended, watermark = to_seconds(entry.ended), to_seconds(entry.watermark)
    return None if ended is None or watermark is None else ended - watermark


def state_size(entry: Entry, what: Literal["rows", "bytes"]) -> int | None:
    """The size of the state over all operators."""
    sizes = [size for one in entry.state if isinstance(size := one.get(what), int)]
    return sum(sizes) if sizes else None


def rate(entries: Sequence[Entry]) -> float | None:
    """Records per second of batch duration; the time between batches does not count.

    >>> rate([Entry(0, "origin", "", "", (), rows=500, durations={WHOLE: 2000})])
    250.0
    """
    timed = [(entry.rows, taken) for entry in entries if (taken := duration(entry)) is not None]
    seconds = sum(taken for _, taken in timed)
    return sum(rows for rows, _ in timed) / seconds if seconds > 0 else None


def to_seconds(time: str | None) -> float | None:
    """A time of the history in seconds since 1970; None if missing or out of range."""
    try:
        return None if time is None else (parse_time(time) - EPOCH).total_seconds()
    except UsageError:
        return None
