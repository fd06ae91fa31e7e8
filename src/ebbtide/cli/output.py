"""What a person sees: results on stdout, everything else on stderr, tables at 80 columns."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ebbtide.config import Settings

if TYPE_CHECKING:
    from rich.console import Console


class Format(str, Enum):
    """How a result is written."""

    table = "table"
    json = "json"


Output = Annotated[Format, typer.Option("-o", "--output", help="How the result is written.")]
Home = Annotated[
    str | None,
    typer.Option(
        help="Folder of a local run (broker data, checkpoints, tables). "
        "[dim]EBBTIDE_HOME, or ./.ebbtide[/dim]",
        show_default=False,
    ),
]
Servers = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-servers",
        help="Kafka's address. [dim]EBBTIDE_BOOTSTRAP_SERVERS, or the embedded broker[/dim]",
        show_default=False,
    ),
]
Zone = Annotated[
    str | None,
    typer.Option(
        "--timezone",
        help="Zone in which times without one are read and written. "
        "[dim]EBBTIDE_TIMEZONE, or UTC[/dim]",
        show_default=False,
    ),
]


def example(*lines: str) -> str:
    """The epilog of a command: lines that run as they stand."""
    return "\n\n".join(["[bold]Example[/bold]", *(f"  $ {line}" for line in lines)])


def stderr() -> Console:
    """The console for everything that is not the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def note(line: str, style: str = "") -> None:
    """Say something on stderr."""
    stderr().print(line, style=style, markup=False)


def show_json(value: Any) -> None:
    """Write a result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
    sys.stdout.flush()


def show_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Write a result as a table."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")  # a path that is cut cannot be copied
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    Console(highlight=False, markup=False).print(table)


def ensure_jars() -> None:
    """Fetch the JVM side's jars if the cache does not hold them, with a progress bar."""
    from ebbtide import jvm

    if not jvm.missing_jars():
        return
    with progress_bar("Fetching the JVM side (Kafka, Delta; once)") as advance:
        jvm.resolve_jars(advance)


@contextmanager
def progress_bar(title: str) -> Iterator[Any]:
    """A bar on stderr; yields the function to call with (done, in all)."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (TextColumn(title), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=stderr()) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        yield advance


def with_broker(settings: Settings, *, start: bool = False) -> Settings:
    """Settings that name a broker: the given one, or the embedded one of the home."""
    if settings.bootstrap_servers:
        return settings
    from ebbtide.errors import BrokerError
    from ebbtide.local.broker import find_broker, start_broker

    broker = find_broker(settings.broker)
    if broker is None:
        if not start:
            raise BrokerError.not_running()
        ensure_jars()
        broker = start_broker(settings.broker)
        note(
            f"Started the embedded broker at {broker.bootstrap_servers}; "
            "it stays until you type: ebbtide broker stop"
        )
    return replace(settings, bootstrap_servers=broker.bootstrap_servers)
