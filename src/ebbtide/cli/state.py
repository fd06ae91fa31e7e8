"""`ebbtide state show|diff`: what the stores of a query hold after a batch, and what changed."""

from __future__ import annotations

import csv
import json
import shutil
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
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

    from ebbtide.checkpoint import Checkpoint
    from ebbtide.state.parts import Part

_CKPT = ".ebbtide/checkpoints/visits-windows-counter"

app = typer.Typer(
    name="state", help="What a query remembers between its batches.", no_args_is_help=True
)


class Format(str, Enum):
    """How a result is written."""

    table = "table"
    json = "json"
    csv = "csv"


class Side(str, Enum):
    """One of the streams that a join joins."""

    left = "left"
    right = "right"


Output = Annotated[Format, typer.Option("-o", "--output", help="How the result is written.")]
OperatorOption = Annotated[
    int | None,
    typer.Option("--operator", help="If there are several: its id, as `ebbtide inspect` shows it."),
]
SideOption = Annotated[Side | None, typer.Option("--side", help="Of a join: whose rows.")]
StoreOption = Annotated[
    str | None, typer.Option("--store", help="One of several stores, as it lies there.")
]
VariableOption = Annotated[
    str | None, typer.Option("--variable", help="Of transformWithState: one of its variables.")
]
TimersOption = Annotated[
    bool, typer.Option("--timers", help="Of transformWithState: the timers that are set.")
]
LimitOption = Annotated[int, typer.Option("--limit", help="So many rows; 0 is all.", min=0)]
RawOption = Annotated[
    bool, typer.Option("--raw", help="Visits of the early writer as the bytes that they are.")
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
    output: Output = Format.table,
) -> None:
    """Show the state after a batch, row by row: each key and its value.

    Spark's own state reader reads it; nothing is changed, and the query
    may be running.
    """
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.state.parts import find_part, require_state

    del bootstrap_servers
    found = read_checkpoint(checkpoint)
    part = find_part(
        *(found, operator), side and side.value, store=store, variable=variable, timers=timers
    )
    chosen = require_state(found, part, batch)
    with _session(found, part, (chosen,), home, timezone, master, conf) as spark:
        from ebbtide.state.reading import read_state, take

        entries = take(read_state(spark, found, part, chosen, where=where, raw=raw), limit)
    rows = [asdict(entry) for entry in entries.first]
    if output is Format.json:
        show_json({**_head(found, part), "batch": chosen, "count": entries.count, "rows": rows})
    elif output is Format.csv:
        _show_csv(rows)
    else:
        from ebbtide.report.state import brief, short

        cells = [(short(brief(row["key"])), short(brief(row["value"]))) for row in rows]
        if cells:
            _show_cut(("key", "value"), cells)
    _say_rest(len(rows), entries.count, "rows")


@app.command(epilog=example(f"ebbtide state diff {_CKPT} --from 0"))
def diff(
    checkpoint: CheckpointArgument,
    before: Annotated[
        int, typer.Option("--from", help="After this batch it was so.", show_default=False)
    ],
    after: Annotated[
        int | None,
        typer.Option("--to", help="After this batch it is so. [dim]the last committed[/dim]"),
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
    output: Output = Format.table,
) -> None:
    """Show what changed in the state from one batch to another.

    A key is added, changed or removed. Where a key has several values (a
    join, a list, timers), each value that came or went is a change.
    """
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.state.parts import find_part, require_span

    del bootstrap_servers
    found = read_checkpoint(checkpoint)
    part = find_part(
        *(found, operator), side and side.value, store=store, variable=variable, timers=timers
    )
    first, last = require_span(found, part, before, after)
    with _session(found, part, (first, last), home, timezone, master, conf) as spark:
        from ebbtide.state.diff import diff_state, summarize

        frame = diff_state(spark, found, part, first, last, where=where, raw=raw)
        difference = summarize(frame, limit)
    rows = [asdict(change) for change in difference.first]
    if output is Format.json:
        head = {**_head(found, part), "from": first, "to": last}
        show_json({**head, "counts": difference.counts, "changes": rows})
    elif output is Format.csv:
        _show_csv(rows)
    else:
        counts = difference.counts
        show_table(tuple(counts), [tuple(f"{count:,}" for count in counts.values())])
        from ebbtide.report.state import brief, short
        from ebbtide.state.diff import Change

        changes = [Change(**{name: brief(row[name]) for name in row}) for row in rows]
        if changes:
            cells = [(change.kind, short(change.key), change.describe()) for change in changes]
            _show_cut(("change", "key", "value"), cells)
    _say_rest(len(rows), sum(difference.counts.values()), "changes")


@contextmanager
def _session(
    checkpoint: Checkpoint,
    part: Part,
    batches: tuple[int, ...],
    home: str | None,
    timezone: str | None,
    master: str | None,
    conf: list[str] | None,
) -> Iterator[SparkSession]:
    """Spark, as long as the state is read; what goes wrong meanwhile is said in one line."""
    from ebbtide.state.parts import measure

    settings = load_settings(home=home, timezone=timezone)
    size = measure(checkpoint, part, *batches)
    note(
        f"The state after batch {' and '.join(map(str, batches))}: {part}, {say_bytes(size)}, "
        f"time zone {settings.timezone}. Starting Spark …"
    )
    from ebbtide.runtime.session import open_session, parse_conf

    chosen = parse_conf(conf or [])
    ensure_jars()
    with open_session("state", settings, master=master, conf=chosen) as spark:
        from ebbtide.state.reading import plain_errors

        with progress_bar("Reading the state"), plain_errors(checkpoint, part, *batches):
            yield spark


def _head(checkpoint: Checkpoint, part: Part) -> dict[str, Any]:
    names = ("operator", "side", "store", "variable", "timers")
    which = {name: getattr(part, name) for name in names}
    return {"checkpoint": checkpoint.location, "query_id": checkpoint.logs.query_id, **which}


def _say_rest(shown: int, count: int, what: str) -> None:
    more = f"; --limit 0 shows all {count:,}" if shown < count else ""
    note(f"{shown:,} of {count:,} {what}{more}.")


def _show_cut(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table whose last two columns are cut to what fits into a line; the key gives way last."""
    *heads, key, value = [
        max(len(column), *(len(row[n]) for row in rows)) for n, column in enumerate(columns)
    ]
    room = shutil.get_terminal_size().columns - sum(heads) - 2 * len(columns)
    key = min(key, room - min(value, room // 4))
    shown = [(*row[:-2], _cut(row[-2], key), _cut(row[-1], room - key)) for row in rows]
    show_table(columns, shown)


def _cut(text: str, width: int) -> str:
    """Text in so many characters.

    >>> _cut("abcdef", 6), _cut("abcdef", 5)
    ('abcdef', 'abcd…')
    """
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _show_csv(rows: list[dict[str, Any]]) -> None:
    """A column for each field; what is nested is JSON, what is not there is empty."""
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
        for field, found in fields.items():
            if found is not None:
                text = found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)
                cells[f"{name}.{field}".rstrip(".")] = text
    return cells
