"""Write results to stdout and everything else to stderr, tables at 80 columns."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any, Literal

import typer

from ebbtide import report, runtime
from ebbtide.config import Settings, SparkFlags, make_folder
from ebbtide.errors import UsageError, mask, printable
from ebbtide.formatting import wrap

if TYPE_CHECKING:
    from rich.console import Console

    from ebbtide.pipeline import Pipeline

_STDOUT, _STDERR = 1, 2
_MAX_ROWS = 1_000
"""Of a table: to lay out a hundred thousand takes minutes."""
_BEAT_SECONDS = 10.0
_CHOICE = " [y/N]: "
_last: Literal["", "part", "table"] = ""
"""What was shown last, if that ended: whatever comes next is set off by an empty line."""
_begun = False
"""Whether anything was shown."""


def begin() -> None:
    """Forget what was shown: a command begins."""
    global _last, _begun
    _last, _begun = "", False


def end_part() -> None:
    """End a part of the output: exactly one empty line stands before the next one, if it comes."""
    global _last
    _last = _last or ("part" if _begun else "")


def _continue() -> None:
    """Write the empty line that is due; beside a table it is on stdout, which has the table."""
    global _last, _begun
    if _last:
        stream = sys.stdout if _last == "table" else sys.stderr
        stream.write("\n")
        stream.flush()
    _last, _begun = "", True


def stderr() -> Console:
    """The console for everything that is not the result."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, soft_wrap=True)


def log_line(line: str, style: str = "") -> None:
    """Print a line on stderr; in a terminal, no word, path or command in it is broken."""
    _continue()
    console, text = stderr(), mask(printable(line))
    if console.is_terminal:
        text = "\n".join(wrap(text, get_terminal_size().columns))
    console.print(text, style=style, markup=False)


@contextmanager
def interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP stop a change as Ctrl-C does: it says how to finish it."""
    number = signal.SIGINT

    def interrupt(received: int, _frame: object) -> None:
        nonlocal number
        number = signal.Signals(received)
        raise KeyboardInterrupt

    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = {
        each: signal.signal(each, interrupt)
        for each in numbers
        if signal.getsignal(each) is not signal.SIG_IGN  # as under nohup
    }
    try:
        yield
    except KeyboardInterrupt as stopped:
        if str(stopped):
            log_line(f"Error: {stopped}", style="bold red")
        sys.exit(128 + number)
    finally:
        for each, handler in handlers.items():
            signal.signal(each, handler)


@contextmanager
def rows_apart(output: str) -> Iterator[None]:
    """With -o json, send what others print to stderr: stdout is for the result alone.

    Spark's JVM, which prints the rows of a console sink, inherits the descriptor at its start.
    """
    if output != "json":
        yield
        return
    sys.stdout.flush()
    ours = os.dup(_STDOUT)
    os.dup2(_STDERR, _STDOUT)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, _STDOUT)
        os.close(ours)


def show_json(value: Any) -> None:
    """Write a result as JSON."""
    sys.stdout.write(json.dumps(value, indent=2, default=str) + "\n")
    sys.stdout.flush()


def show_text(text: str) -> None:
    """Write a result as lines of text."""
    _continue()
    sys.stdout.write(f"{printable(text)}\n")
    sys.stdout.flush()


def show_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], *, folds: str | tuple[str, ...] = ()
) -> None:
    """Write a result as a table; if it is too wide, the columns named in `folds` give way."""
    from ebbtide.cli.tables import lay_out

    global _last
    if len(rows) > _MAX_ROWS:
        log_line(f"The last {_MAX_ROWS:,} of {len(rows):,} rows; -o json shows all of them.")
    cells = [[printable(str(cell)) for cell in row] for row in rows[-_MAX_ROWS:]]
    if _begun:
        _last = "table"
    _continue()
    folds = (folds,) if isinstance(folds, str) else folds
    lines = lay_out(columns, cells, get_terminal_size().columns, folds)
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    sys.stdout.flush()
    _last = "table"


def show_sizes(title: str, sizes: Mapping[str, int]) -> None:
    """Show the number and size of a checkpoint's files, one line per kind."""
    show_table((title, "files", "size"), report.messages.group_sizes(sizes))


def ensure_jars(*sets: runtime.java.JarSet) -> None:
    """Download the jars that are missing (by default for Spark and the broker), with a bar."""
    if runtime.java.missing_jars(*sets):
        with progress_always("Downloading the jars for Kafka and Delta (once)") as advance:
            runtime.java.resolve_jars(*sets, progress=advance)


@contextmanager
def progress_bar(title: str, unit: str = "", *, hidden: bool = False) -> Iterator[Any]:
    """Show a bar in a terminal; yields the function that advances it: (done, total)."""
    if hidden or not stderr().is_terminal:
        yield lambda _done, _total=None: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    counted = TextColumn(f"{{task.completed:,.0f}} {unit}") if unit else TaskProgressColumn()
    columns = (TextColumn(title), BarColumn(), counted, TimeElapsedColumn())
    with Progress(*columns, console=stderr(), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def advance(done: float, total: float | None = None) -> None:
            # at its end, a bar stops its clock; what follows the last file may take a minute
            bar.update(task, completed=done, total=max(total, done / 0.99) if total else total)

        yield advance


@contextmanager
def progress_always(title: str) -> Iterator[Any]:
    """Show a bar on stderr, or through a pipe a line now and then: for what takes a minute."""
    if stderr().is_terminal:
        with progress_bar(title) as advance:
            yield advance
        return
    share, over = "", threading.Event()

    def advance_line(done: float, total: float | None = None) -> None:
        nonlocal share
        share = f" {done / total:.0%}" if total else ""

    def beat() -> None:
        log_line(f"{title} …")
        while not over.wait(_BEAT_SECONDS):
            log_line(f"{title} …{share}")

    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield advance_line
    finally:
        over.set()
        beats.join()


def ask(question: str, *, yes: bool) -> None:
    """Ask before something is changed; refuse if nobody is there to answer."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("This changes the checkpoint and nobody is here to ask.", "Add --yes.")
    end_part()
    _continue()
    *lines, last = wrap(question, get_terminal_size().columns - len(_CHOICE))
    for line in lines:
        typer.echo(line, err=True)
    try:
        agreed = typer.confirm(last, err=True)
    except typer.Abort:  # Ctrl-C, whose echo stands on the line of the question
        typer.echo(err=True)
        agreed = False
    if not agreed:
        log_line("Nothing has changed.")
        raise typer.Exit(1)


def with_broker(settings: Settings, *, start: bool = False) -> Settings:
    """Settings that name a broker: the given one, or the embedded one of the home."""
    if settings.names_kafka:
        return settings
    from ebbtide.errors import BrokerError
    from ebbtide.local import find_broker, start_broker

    broker = find_broker(settings.broker)
    if broker is None:
        if not start:
            raise BrokerError.not_running()
        ensure_jars("broker")
        broker = start_broker(settings.broker)
        log_line(
            f"Started the embedded broker at {broker.bootstrap_servers}; "
            "it stays until you type: ebbtide broker stop"
        )
    return settings.use_embedded(broker.bootstrap_servers)


def prepare_run(
    settings: Settings,
    pipeline: Pipeline,
    flags: SparkFlags,
    *,
    broker: bool,
) -> Settings:
    """Create the home, download the jars, and start a broker if the run needs one."""
    cluster = runtime.cluster
    flags = cluster.check_spark(pipeline, flags)
    if broker:
        cluster.require_broker_of_cluster(flags.master, settings)
    prepare_spark(settings)
    return with_broker(settings, start=True) if broker else settings


def prepare_spark(settings: Settings) -> None:
    """Create the home, and download the jars."""
    make_folder(settings.home, "--home")
    if not runtime.cluster.is_submitted():
        ensure_jars("spark")
