"""The commands `ebbtide state show` and `diff`, which show the state or what changed in it."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from ebbtide import runtime
from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import ensure_jars, log_line, progress_bar, show_json, show_table
from ebbtide.config import SparkFlags
from ebbtide.formatting import format_bytes

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.checkpoint import Checkpoint
    from ebbtide.state import StatePart

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"


@dataclass(frozen=True)
class PartOptions:
    """Which part of the state to read."""

    operator: int | None = option("--operator ID", "Operator, as `ebbtide inspect` shows it.")
    side: Literal["left", "right"] | None = option("--side SIDE", "In a join: left or right.")
    store: str | None = option("--store NAME", "One of several stores, as Spark stores it.")
    variable: str | None = option("--variable NAME", "In transformWithState: one variable.")
    timers: bool = option("--timers", "In transformWithState: the timers that are set.")

    def find(self, location: str) -> tuple[Checkpoint, StatePart]:
        """The checkpoint and the part of its state."""
        from ebbtide.checkpoint import read_checkpoint
        from ebbtide.state import parts

        checkpoint = read_checkpoint(location)
        return checkpoint, parts.find_part(checkpoint, **asdict(self))


@dataclass(frozen=True)
class RowOptions:
    """Which rows to show, and how."""

    limit: int = option("--limit N", "Maximum number of rows (0 = all).", 20, min=0)
    raw: bool = option("--raw", "Show values as stored, without decoding them.")
    output: Literal["table", "json", "csv"] = option(
        "-o --output FORMAT", "table, json or csv.", "table"
    )


@dataclass(frozen=True)
class SessionOptions(options.TimeOptions, options.SparkOptions):
    """Which Spark reads the state, and where."""


@command(f"ebbtide state show {_CKPT}", f"ebbtide state show {_CKPT} --where 'value.count > 2'")
def show(
    part: PartOptions,
    rows: RowOptions,
    session: SessionOptions,
    checkpoint: str = options.CHECKPOINT,
    batch: int | None = option("--batch N", "Batch (default: the last committed one)."),
    where: str | None = option("--where SQL", "An SQL condition over key.… and value.…"),
) -> None:
    """Show the state after a batch, row by row: each key and its value.

    Spark's own state reader reads it. Nothing is changed, and the query may
    be running.
    """
    from ebbtide.state import parts, values

    opened, which = part.find(checkpoint)
    chosen = parts.require_state(opened, which, batch)
    with _open_session(checkpoint, opened, which, (chosen,), session) as spark:
        from ebbtide.state import read_state, take

        frame = read_state(spark, opened, which, chosen, where=where, raw=rows.raw)
        entries = take(frame, rows.limit)
    first = [asdict(entry) for entry in entries.first]
    if rows.output == "json":
        show_json({**_head(opened, which), "batch": chosen, "count": entries.count, "rows": first})
    elif rows.output == "csv":
        _show_csv(first)
    elif first:
        columns = ("key", "value")
        cells = [[values.abbreviate(row[name]) for name in columns] for row in first]
        _show_cut(columns, [[values.to_short_json(cell) for cell in row] for row in cells])
    _log_rest(len(first), entries.count, "rows")


@command(f"ebbtide state diff {_CKPT} --from 0")
def diff(
    part: PartOptions,
    rows: RowOptions,
    session: SessionOptions,
    checkpoint: str = options.CHECKPOINT,
    before: int = option("--from N", "The earlier batch.", ..., show_default=False),
    after: int | None = option("--to N", "The later batch (default: the last committed one)."),
    where: str | None = option("--where SQL", "An SQL condition over key.…"),
) -> None:
    """Show what changed in the state from one batch to another.

    A key is added, changed or removed. Where a key has several values (a
    join, a list, timers), each value that came or went is a change.
    """
    from ebbtide.state import parts, values

    opened, which = part.find(checkpoint)
    batches = parts.require_span(opened, which, before, after)
    with _open_session(checkpoint, opened, which, batches, session) as spark:
        from ebbtide.state import diff_state, summarize

        frame = diff_state(spark, opened, which, *batches, where=where, raw=rows.raw)
        difference = summarize(frame, rows.limit)
    counts, first = difference.counts, [asdict(change) for change in difference.first]
    if rows.output == "json":
        head = {**_head(opened, which), "from": batches[0], "to": batches[1]}
        show_json({**head, "counts": counts, "changes": first})
    elif rows.output == "csv":
        _show_csv(first)
    else:
        show_table(tuple(counts), [tuple(f"{count:,}" for count in counts.values())])
        changes = [
            replace(change, **{name: values.abbreviate(row[name]) for name in row})
            for change, row in zip(difference.first, first, strict=True)
        ]
        if changes:
            cells = [(c.kind, values.to_short_json(c.key), c.describe()) for c in changes]
            _show_cut(("change", "key", "value"), cells)
    _log_rest(len(first), sum(counts.values()), "changes")


@contextmanager
def _open_session(
    location: str,
    checkpoint: Checkpoint,
    part: StatePart,
    batches: tuple[int, ...],
    session: SessionOptions,
) -> Iterator[SparkSession]:
    """A Spark session to read the state with; an error of Spark's becomes one line.

    `location` is the checkpoint's as typed: a `file:` URL says that it is mounted everywhere.
    """
    from ebbtide.state import parts
    from ebbtide.systems import register_decoders

    settings, cluster = session.settings, runtime.cluster
    flags = cluster.resolve(SparkFlags(**session.to_flags()))
    cluster.require_shared(flags.master, {"checkpoint": location})
    runtime.versions.require(runtime.versions.STATE_READER)
    size = parts.measure(checkpoint, part, *batches)
    log_line(
        f"The state after batch {' and '.join(map(str, batches))}: {part}, {format_bytes(size)}, "
        f"time zone {settings.timezone}. Starting Spark …"
    )
    if not cluster.is_submitted():
        ensure_jars("spark")
    register_decoders()
    options = {"master": flags.master, "conf": flags.conf, "locations": [location]}
    with runtime.session.open_session("state", settings, **options) as spark:
        from ebbtide.state import plain_errors

        with progress_bar("Reading the state"), plain_errors(checkpoint, part, *batches):
            yield spark


def _head(checkpoint: Checkpoint, part: StatePart) -> dict[str, Any]:
    names = ("operator", "side", "store", "variable", "timers")
    which = {name: getattr(part, name) for name in names}
    return {"checkpoint": checkpoint.location, "query_id": checkpoint.logs.query_id, **which}


def _log_rest(shown: int, count: int, what: str) -> None:
    more = f"; --limit 0 shows all {count:,}" if shown < count else ""
    log_line(f"{shown:,} of {count:,} {what}{more}.")


def _show_cut(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last two columns are cut to fit the line, the value before the key."""
    *heads, key, value = [
        max(len(column), *(len(row[n]) for row in rows)) for n, column in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns - sum(heads) - 2 * len(columns)
    key = min(key, room - min(value, room // 4))
    shown = [(*row[:-2], _cut(row[-2], key), _cut(row[-1], room - key)) for row in rows]
    show_table(columns, shown)


def _cut(text: str, width: int) -> str:
    """Text, cut to a width.

    >>> _cut("abcdef", 6), _cut("abcdef", 5)
    ('abcdef', 'abcd…')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _show_csv(rows: list[dict[str, Any]]) -> None:
    """A column for each field; nested values are JSON, missing ones empty."""
    flat = [_flatten(row) for row in rows]
    names = list(dict.fromkeys(name for row in flat for name in row))
    writer = csv.DictWriter(sys.stdout, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)


def _flatten(row: dict[str, Any]) -> dict[str, str]:
    """One level deep.

    >>> _flatten({"key": {"page": "a", "at": [1]}, "partition": 0})
    {'key.page': 'a', 'key.at': '[1]', 'partition': '0'}
    """
    cells = {}
    for name, value in row.items():
        fields = value if isinstance(value, dict) else {"": value}
        for field, cell in fields.items():
            if cell is not None:
                text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
                cells[f"{name}.{field}".rstrip(".")] = text
    return cells
