"""What a user sees: results on stdout, everything else on stderr, tables at 80 columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import typer

from ebbtide.config import Settings
from ebbtide.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console


def stderr() -> Console:
    """The console for everything that is not the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def log_line(line: str, style: str = "") -> None:
    """Print a line on stderr."""
    stderr().print(line, style=style, markup=False)


def show_json(value: Any) -> None:
    """Write a result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
    sys.stdout.flush()


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, folds: str | None = None
) -> None:
    """Write a result as a table; if it is too wide, the column named `folds` gives way."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for column in columns:
        # a path that is cut cannot be copied
        table.add_column(column, overflow="fold", no_wrap=folds not in (None, column))
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(highlight=False, markup=False).print(table)


def show_sizes(title: str, sizes: Mapping[str, int]) -> None:
    """Files of a checkpoint by their paths and sizes, one line a kind."""
    from ebbtide.report import messages

    show_table((title, "files", "size"), messages.group_sizes(sizes))


def ensure_jars() -> None:
    """Fetch the JVM side's jars if the cache does not hold them, with a progress bar."""
    from ebbtide.runtime import java as jvm

    if not jvm.missing_jars():
        return
    with progress_bar("Fetching the JVM side (Kafka, Delta; once)") as advance:
        jvm.resolve_jars(advance)


@contextmanager
def progress_bar(title: str, unit: str = "", *, hidden: bool = False) -> Iterator[Any]:
    """A bar on stderr; yields the function to call with (done, in all or None)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    counted = TextColumn(f"{{task.completed:,.0f}} {unit}") if unit else TaskProgressColumn()
    columns = (TextColumn(title), BarColumn(), counted, TimeElapsedColumn())
    with Progress(*columns, console=stderr(), disable=hidden, transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int | None) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def ask(question: str, *, yes: bool) -> None:
    """Ask before something is changed; refuse if nobody is there to answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("This changes the checkpoint and nobody is here to ask.", "Add --yes.")
    if not typer.confirm(question, err=True):
        log_line("Nothing has changed.")
        raise typer.Exit(1)


def with_broker(settings: Settings, *, start: bool = False) -> Settings:
    """Settings that name a broker: the given one, or the embedded one of the home."""
    if settings.bootstrap_servers:
        return settings
    from ebbtide.errors import BrokerError
    from ebbtide.local import find_broker, start_broker

    broker = find_broker(settings.broker)
    if broker is None:
        if not start:
            raise BrokerError.not_running()
        ensure_jars()
        broker = start_broker(settings.broker)
        log_line(
            f"Started the embedded broker at {broker.bootstrap_servers}; "
            "it stays until you type: ebbtide broker stop"
        )
    return replace(settings, bootstrap_servers=broker.bootstrap_servers)
