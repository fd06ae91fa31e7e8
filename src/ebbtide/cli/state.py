"""`ebbtide state show|diff`: the state of a query after a batch, or what changed in it."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.cli.output import (
    AnyServers,
    CheckpointArgument,
    Conf,
    Home,
    Master,
    Zone,
    ensure_jars,
    example,
    note,
    progress_bar,
    say_bytes,
    show_json,
    show_table,
)
from ebbtide.config import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ebbtide.checkpoint.reader import Checkpoint
    from ebbtide.state import StatePart

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"

app = typer.Typer(
    name="state", help="Show the state that a query keeps between batches.", no_args_is_help=True
)


class StateFormat(str, Enum):
    """Output formats."""

    table = "table"
    json = "json"
    csv = "csv"


class Side(str, Enum):
    """One of the two streams of a join."""

    left = "left"
    right = "right"


Output = Annotated[StateFormat, typer.Option("-o", "--output", help="Output format.")]
OperatorOption = Annotated[
    int | None,
    typer.Option("--operator", help="The operator's id, as `ebbtide inspect` shows it."),
]
SideOption = Annotated[Side | None, typer.Option("--side", help="In a join: whose rows.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="One of several stores, as Spark stores it.")
]
VariableOption = Annotated[
    str | None, typer.Option("--variable", help="In transformWithState: one variable.")
]
TimersOption = Annotated[
    bool, typer.Option("--timers", help="In transformWithState: the timers that are set.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", help="Maximum number of rows (0 = all).", min=0)
]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Show values as stored, without decoding them.")
]


def register(root: typer.Typer) -> None:
    """Add the commands to the root."""
    root.add_typer(app)


@app.command(
    epilog=example(
        f"ebbtide state show {_CKPT}", f"ebbtide state show {_CKPT} --where 'value.count > 2'"
    )
)
def show(
    checkpoint: CheckpointArgument,
    batch: Annotated[
        int | None, typer.Option("--batch", help="After this batch. [dim]the last committed[/dim]")
    ] = None,
    operator: OperatorOption = None,
    side: SideOption = None,
    store: StoreOption = None,
    variable: VariableOption = None,
    timers: TimersOption = False,
    where: Annotated[
        str | None, typer.Option("--where", help="An SQL condition over key.… and value.…")
    ] = None,
    limit: LimitOption = 20,
    raw: RawOption = False,
    master: Master = None,
    conf: Conf = None,
    home: Home = None,
    bootstrap_servers: AnyServers = None,
    timezone: Zone = None,
    output: Output = StateFormat.table,
) -> None:
    """Show the state after a batch, row by row: each key and its value.

    Spark's own state reader reads it. Nothing is changed, and the query may
    be running.
    """
    from ebbtide.state import parts, values

    del bootstrap_servers
    found, part = _find_part(checkpoint, operator, side, store, variable, timers)
    chosen = parts.require_state(found, part, batch)
    with _session(found, part, (chosen,), home, timezone, master, conf) as spark:
        from ebbtide.state import read_state, take

        entries = take(read_state(spark, found, part, chosen, where=where, raw=raw), limit)
    rows = [asdict(entry) for entry in entries.first]
    if output is StateFormat.json:
        show_json({**_head(found, part), "batch": chosen, "count": entries.count, "rows": rows})
    elif output is StateFormat.csv:
        _show_csv(rows)
    elif rows:
        columns = ("key", "value")
        short = [[values.abbreviate(row[name]) for name in columns] for row in rows]
        _show_cut(columns, [[values.to_short_json(cell) for cell in row] for row in short])
    _log_rest(len(rows), entries.count, "rows")


@app.command(epilog=example(f"ebbtide state diff {_CKPT} --from 0"))
def diff(
    checkpoint: CheckpointArgument,
    before: Annotated[
        int, typer.Option("--from", help="Compare the state after this batch …", show_default=False)
    ],
    after: Annotated[
        int | None,
        typer.Option("--to", help="… with that after this one. [dim]the last committed[/dim]"),
    ] = None,
    operator: OperatorOption = None,
    side: SideOption = None,
    store: StoreOption = None,
    variable: VariableOption = None,
    timers: TimersOption = False,
    where: Annotated[
        str | None, typer.Option("--where", help="An SQL condition over key.…")
    ] = None,
    limit: LimitOption = 20,
    raw: RawOption = False,
    master: Master = None,
    conf: Conf = None,
    home: Home = None,
    bootstrap_servers: AnyServers = None,
    timezone: Zone = None,
    output: Output = StateFormat.table,
) -> None:
    """Show what changed in the state from one batch to another.

    A key is added, changed or removed. Where a key has several values (a
    join, a list, timers), each value that came or went is a change.
    """
    from ebbtide.state import parts, values

    del bootstrap_servers
    found, part = _find_part(checkpoint, operator, side, store, variable, timers)
    first, last = parts.require_span(found, part, before, after)
    with _session(found, part, (first, last), home, timezone, master, conf) as spark:
        from ebbtide.state import diff_state, summarize

        frame = diff_state(spark, found, part, first, last, where=where, raw=raw)
        difference = summarize(frame, limit)
    counts, rows = difference.counts, [asdict(change) for change in difference.first]
    if output is StateFormat.json:
        head = {**_head(found, part), "from": first, "to": last}
        show_json({**head, "counts": counts, "changes": rows})
    elif output is StateFormat.csv:
        _show_csv(rows)
    else:
        show_table(tuple(counts), [tuple(f"{count:,}" for count in counts.values())])
        changes = [
            replace(change, **{name: values.abbreviate(row[name]) for name in row})
            for change, row in zip(difference.first, rows, strict=True)
        ]
        if changes:
            cells = [(c.kind, values.to_short_json(c.key), c.describe()) for c in changes]
            _show_cut(("change", "key", "value"), cells)
    _log_rest(len(rows), sum(counts.values()), "changes")


def _find_part(
    location: str,
    operator: int | None,
    side: Side | None,
    store: str | None,
    variable: str | None,
    timers: bool,
) -> tuple[Checkpoint, StatePart]:
    from ebbtide.checkpoint.reader import read_checkpoint
    from ebbtide.state import parts

    checkpoint, name = read_checkpoint(location), side and side.value
    return checkpoint, parts.find_part(
        checkpoint, operator, name, store=store, variable=variable, timers=timers
    )


@contextmanager
def _session(
    checkpoint: Checkpoint,
    part: StatePart,
    batches: tuple[int, ...],
    home: str | None,
    timezone: str | None,
    master: str | None,
    conf: list[str] | None,
) -> Iterator[SparkSession]:
    """A Spark session to read the state with; an error of Spark's becomes one line."""
    from ebbtide.state import parts
    from ebbtide.systems import register_decoders

    settings = load_settings(home=home, timezone=timezone)
    size = parts.measure(checkpoint, part, *batches)
    note(
        f"The state after batch {' and '.join(map(str, batches))}: {part}, {say_bytes(size)}, "
        f"time zone {settings.timezone}. Starting Spark …"
    )
    from ebbtide.runtime import open_session, parse_conf

    chosen = parse_conf(conf or [])
    ensure_jars()
    register_decoders()
    with open_session("state", settings, master=master, conf=chosen) as spark:
        from ebbtide.state import plain_errors

        with progress_bar("Reading the state"), plain_errors(checkpoint, part, *batches):
            yield spark


def _head(checkpoint: Checkpoint, part: StatePart) -> dict[str, Any]:
    names = ("operator", "side", "store", "variable", "timers")
    which = {name: getattr(part, name) for name in names}
    return {"checkpoint": checkpoint.location, "query_id": checkpoint.logs.query_id, **which}


def _log_rest(shown: int, count: int, what: str) -> None:
    more = f"; --limit 0 shows all {count:,}" if shown < count else ""
    note(f"{shown:,} of {count:,} {what}{more}.")


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
