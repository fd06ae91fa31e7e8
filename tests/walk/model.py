"""What a walk should find, in plain Python: batches, operators with state, and what a sink holds.

The input is a row of units; each has three rows, computed from its number. A batch reads a range of
units. What it leaves in state and writes follows from the batches before it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

MORNING = 1_756_969_200_000
MINUTE = 60_000
DELAY = 20 * MINUTE
WINDOW, GAP, NEAR = 10 * MINUTE, 7 * MINUTE, 10 * MINUTE
KEYS = ("ann", "bob", "cyd")
LAGS = (0, 5, 10, 45)
"""In minutes; a row that is 45 minutes late is dropped where there is a watermark."""

Row = Mapping[str, Any]
Rows = tuple[Row, ...]
State = Mapping[Any, Any]
Step = Callable[[State, Rows, int, int, str], tuple[State, list[Row]]]
"""State, rows, the watermarks for late rows and for eviction, and the output mode."""


def rows_of(unit: int, factor: int = 1) -> Rows:
    """The rows of a unit; each third repeats the one before. `factor` is the version of the code.

    >>> [(row["id"], row["value"]) for row in rows_of(2, factor=10)]
    [('1-0', 60), ('1-1', 70), ('1-2', 80)]
    """
    own = unit - (unit % 3 == 2)
    return tuple(
        {
            "unit": unit,
            "id": f"{own}-{place}",
            "key": KEYS[(own * place + own // 2) % 3],
            "value": (1 + 5 * own + place) * factor,
            "at": MORNING + (5 * own - LAGS[(own * 5 + place * 3 + own // 4) % 4]) * MINUTE,
        }
        for place in range(3)
    )


def _clock(at: int) -> str:
    minutes = at // MINUTE % 1440
    return f"{minutes // 60:02}:{minutes % 60:02}:00"


def _totals(key: Row, total: tuple[int, int]) -> Row:
    return {**key, "total": total[0], "rows": total[1]}


def _add(state: dict[Any, tuple[int, int]], key: Any, value: int) -> None:
    total, count = state.get(key, (0, 0))
    state[key] = (total + value, count + 1)


def sum_up(state: State, rows: Rows, late: int, evict: int, mode: str) -> tuple[State, list[Row]]:
    """Running totals by key."""
    del late, evict
    new = dict(state)
    for row in rows:
        _add(new, row["key"], row["value"])
    shown = new if mode == "complete" else {row["key"] for row in rows}
    return new, [_totals({"key": key}, new[key]) for key in shown]


def sum_windows(
    state: State, rows: Rows, late: int, evict: int, mode: str
) -> tuple[State, list[Row]]:
    """Totals of each ten minutes; appended when the watermark passes their end."""
    new, changed = dict(state), set()
    for row in rows:
        start = row["at"] // WINDOW * WINDOW
        if start + WINDOW > late:
            _add(new, (start, row["key"]), row["value"])
            changed.add((start, row["key"]))
    closed = {key for key in new if key[0] + WINDOW <= evict}
    shown = closed if mode == "append" else changed
    out = [_totals({"start": _clock(at), "key": key}, new[at, key]) for at, key in shown]
    return {key: total for key, total in new.items() if key not in closed}, out


def drop_repeats(
    state: State, rows: Rows, late: int, evict: int, mode: str
) -> tuple[State, list[Row]]:
    """Each row once, by id and time."""
    del mode
    new, out = dict(state), list[Row]()
    for row in rows:
        key = (row["id"], row["at"])
        if row["at"] > late and key not in new:
            new[key] = ()
            out.append({**_shown(row), "at": _clock(row["at"])})
    return {key: () for key in new if key[1] > evict}, out


def sum_sessions(
    state: State, rows: Rows, late: int, evict: int, mode: str
) -> tuple[State, list[Row]]:
    """Totals of each session, appended when the watermark passes its end."""
    del mode
    parts = [(key, start, end, *total) for (key, start, end), total in state.items()]
    parts += [
        (row["key"], row["at"], row["at"] + GAP, row["value"], 1)
        for row in rows
        if row["at"] + GAP > late
    ]
    merged: list[tuple[str, int, int, int, int]] = []
    for key, start, end, total, count in sorted(parts):
        if merged and merged[-1][0] == key and start <= merged[-1][2]:
            _, first, last, before, rows_before = merged.pop()
            start, end = first, max(last, end)
            total, count = total + before, count + rows_before
        merged.append((key, start, end, total, count))
    closed = [part for part in merged if part[2] <= evict]
    out = [
        _totals({"start": _clock(start), "end": _clock(end), "key": key}, (total, count))
        for key, start, end, total, count in closed
    ]
    return {part[:3]: part[3:] for part in merged if part[2] > evict}, out


def join_rows(
    state: State, rows: Rows, late: int, evict: int, mode: str
) -> tuple[State, list[Row]]:
    """Each row with those of ten minutes before and after, from the same stream read twice.

    State keeps all rows here: those that Spark evicts would not match any more.
    """
    del evict, mode
    old = tuple(state.get("rows", ()))
    new = tuple(row for row in rows if row["at"] > late)
    pairs = [(one, other) for one in old for other in new]
    pairs += [(one, other) for one in new for other in (*old, *new)]
    out: list[Row] = [
        {**_shown(one), "other": other["id"], "other_value": other["value"]}
        for one, other in pairs
        if one["key"] == other["key"] and abs(one["at"] - other["at"]) <= NEAR
    ]
    return {"rows": (*old, *new)}, out


def keep(state: State, rows: Rows, late: int, evict: int, mode: str) -> tuple[State, list[Row]]:
    """The rows as they are, without state."""
    del late, evict, mode
    return state, [_shown(row) for row in rows]


def _shown(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("id", "key", "value")}


@dataclass(frozen=True)
class Operator:
    """One kind of query."""

    step: Step
    marked: bool = True
    """Whether it has a watermark."""
    stateful: bool = True
    appends: bool = True
    """Whether it can run in append mode."""
    updates: bool = False
    """Whether it also runs in update mode."""

    def mode(self, sink: str) -> str:
        """The output mode in which it writes to a sink."""
        if self.updates and sink in ("ledger", "txn"):
            return "update"
        return "append" if self.appends else "complete"


OPERATORS = {
    "aggregation": Operator(sum_up, marked=False, appends=False, updates=True),
    "windowed": Operator(sum_windows, updates=True),
    "deduplication": Operator(drop_repeats),
    "join": Operator(join_rows),
    "session": Operator(sum_sessions),
    "tws": Operator(sum_up, marked=False, updates=True),
    "none": Operator(keep, marked=False, stateful=False),
}
SINKS = ("ledger", "txn", "delta", "files")
SKIPPING = ("delta", "files")
"""Sinks that do not even run a batch again that they have noted."""


@dataclass(frozen=True)
class Case:
    """What one walk is over."""

    store: str
    operator: str
    sink: str
    source: str

    def __str__(self) -> str:
        return f"{self.store}-{self.operator}-{self.sink}-{self.source}"

    @property
    def query(self) -> Operator:
        """The kind of query."""
        return OPERATORS[self.operator]

    @property
    def is_possible(self) -> bool:
        """Whether Spark can run it."""
        if self.operator == "tws" and self.store == "hdfs":
            return False
        return self.sink != "files" or self.query.appends


STORES = ("hdfs", "rocksdb", "changelog", "v2")
QUERIES = ("windowed", "aggregation", "deduplication", "session", "join", "none", "tws")
FIXED = (12, 17, 18, 7)
"""Seeds with each store and each sink, over queries that are quick."""


def case_of(number: int) -> Case:
    """The case that a seed walks over: all stores, queries, sinks and sources take turns.

    >>> str(case_of(0))
    'hdfs-windowed-ledger-rate'
    """
    cases = [
        Case(store, query, sink, source)
        for query in QUERIES
        for sink in SINKS
        for source in ("rate", "files")
        for store in STORES
    ]
    possible = [case for case in cases if case.is_possible]
    return possible[number * 37 % len(possible)]


@dataclass(frozen=True)
class Entry:
    """One change of a sink."""

    rows: tuple[str, ...] = ()
    replaces: bool = False
    """Whether its rows take the place of all others."""
    foreign: bool = False
    """Whether another writer made it."""


@dataclass(frozen=True)
class Logged:
    """What Spark's logs say of a batch."""

    end: int
    """Up to which unit it read."""
    watermark: int
    committed: bool


@dataclass(frozen=True)
class Batch:
    """One run of a batch, or its plan."""

    start: int
    end: int
    watermark: int
    committed: bool = False
    state: State | None = None
    """After it; None if it has not run."""
    next_watermark: int = 0
    before: tuple[Entry, ...] | None = None
    """What the sink held before it wrote; None if it has not."""

    @property
    def logged(self) -> Logged:
        """What Spark should have logged."""
        return Logged(self.end, self.watermark, self.committed)

    def as_plan(self) -> Batch:
        """Only its plan."""
        return Batch(self.start, self.end, self.watermark)


@dataclass(frozen=True)
class Line:
    """A timeline: its batches, and the sink as it belongs to them."""

    batches: tuple[Batch, ...] = ()
    entries: tuple[Entry, ...] = ()
    seen: int = -1
    """The last batch that the sink would not take again."""
    rest: Mapping[int, Batch] = field(default_factory=dict)
    """The plans that the last rewind removed, by batch, if none was planned again since."""

    @property
    def committed(self) -> int:
        """How many batches are committed."""
        return sum(batch.committed for batch in self.batches)

    @property
    def may_replay(self) -> bool:
        """Whether plans that a rewind removed are left to run again."""
        return max(self.rest, default=-1) >= self.committed

    @property
    def rows(self) -> list[str]:
        """What a reader of the sink sees."""
        shown: list[str] = []
        for entry in self.entries:
            shown = [*([] if entry.replaces else shown), *entry.rows]
        return sorted(shown)

    @property
    def state(self) -> State:
        """After the last committed batch."""
        found = self.batches[self.committed - 1].state if self.committed else {}
        assert found is not None
        return found

    def run(self, case: Case, factor: int, logs: Mapping[int, Logged], wrote: int) -> Line:
        """After a run that left these logs; `wrote` is the last batch whose output was written.

        Raises an AssertionError if Spark cannot have logged that.
        """
        line = self
        for number in range(self.committed, max(logs, default=-1) + 1):
            line = line._run_batch(case, factor, number, logs[number], wrote)
        return line

    def _run_batch(self, case: Case, factor: int, number: int, logged: Logged, wrote: int) -> Line:
        planned = self.batches[number] if number < len(self.batches) else None
        previous = self.batches[number - 1] if number else None
        start = previous.end if previous else 0
        if planned is None:
            expected = previous.next_watermark if previous else 0
            assert logged.watermark == expected, f"watermark of batch {number}"
            grows = logged.end > start or (previous and expected > previous.watermark)
            assert grows, f"batch {number} reads nothing, and its watermark stands still"
            planned = Batch(start, logged.end, expected)
            line = replace(self, rest={})
        else:
            assert (logged.end, logged.watermark) == (planned.end, planned.watermark)
            line = self
        if number > wrote:
            return line._with(number, replace(planned, committed=logged.committed))
        return line._execute(case, factor, number, planned, committed=logged.committed)

    def _execute(
        self, case: Case, factor: int, number: int, planned: Batch, *, committed: bool
    ) -> Line:
        previous = self.batches[number - 1] if number else None
        skipped = number <= self.seen and case.sink in ("txn", *SKIPPING)
        if skipped and case.sink in SKIPPING:  # not executed: the watermark stands still
            batch = replace(planned, committed=committed, next_watermark=planned.watermark)
            return self._with(number, batch)
        read = tuple(row for n in range(planned.start, planned.end) for row in rows_of(n, factor))
        state, out = case.query.step(
            (previous.state if previous else None) or {},
            read,
            previous.watermark if previous else 0,
            planned.watermark,
            case.query.mode(case.sink),
        )
        latest = max((row["at"] - DELAY for row in read), default=0) if case.query.marked else 0
        batch = replace(
            planned,
            committed=committed,
            state=state,
            next_watermark=max(planned.watermark, latest),
            before=planned.before if skipped else self.entries,
        )
        line = self._with(number, batch)
        if skipped:
            return line
        rows = tuple(as_text(row) for row in out)
        entry = Entry(rows, replaces=case.query.mode(case.sink) == "complete")
        return replace(line, entries=(*self.entries, entry), seen=number)

    def _with(self, number: int, batch: Batch) -> Line:
        return replace(self, batches=(*self.batches[:number], batch))

    def lose_commit(self) -> Line:
        """As a crash leaves it just before a batch is committed."""
        return self._with(len(self.batches) - 1, replace(self.batches[-1], committed=False))

    def rewind(self, batch: int, *, replan: bool, restores: bool, new_id: bool) -> Line:
        """After a rewind to a batch; `restores` if the sink goes back, too."""
        kept = self.batches[:batch]
        plan = () if replan else (self.batches[batch].as_plan(),)
        before = self.batches[batch].before
        entries, seen = self.entries, self.seen
        if restores and before is not None:
            entries = before
        if restores or not new_id:
            seen = min(seen, batch - 1)
        elif new_id:
            seen = -1
        later = {n: plan for n, plan in self.rest.items() if n >= len(self.batches)}
        gone = {n: self.batches[n].as_plan() for n in range(batch, len(self.batches))}
        return Line((*kept, *plan), entries, seen, gone | later)

    def replay(self, case: Case, factor: int) -> Line:
        """After the removed batches have run again as they were planned."""
        line = self
        for number in range(self.committed, max(self.rest) + 1):
            line = line._execute(case, factor, number, self.rest[number], committed=True)
        return line

    def foreign_since(self, batch: int) -> bool:
        """Whether another writer has changed the sink since a batch began to write."""
        before = self.batches[batch].before
        return before is not None and any(e.foreign for e in self.entries[len(before) :])


@dataclass(frozen=True)
class Saved:
    """A backup: what an undo brings back, and what the sink held when it was made."""

    line: Line
    entries: tuple[Entry, ...] = ()
    first: int = 0
    """The batch from which on it replaces what is there."""

    def is_blocked(self, now: Line) -> bool:
        """Whether another writer has changed the sink since; what they wrote never goes."""
        return sum(e.foreign for e in now.entries) > sum(e.foreign for e in self.entries)


@dataclass
class Stream:
    """One checkpoint: its timeline, its backups, oldest first, and what foreachBatch was given."""

    name: str
    sink: str
    line: Line = field(default_factory=Line)
    backups: list[Saved] = field(default_factory=list)
    ledger: dict[int, tuple[str, ...]] = field(default_factory=dict)
    first: int = 0
    """The batch with which a fork began; a checkpoint has none before it."""


def as_text(row: Row) -> str:
    """A row as it is compared."""
    return json.dumps(row, sort_keys=True)
