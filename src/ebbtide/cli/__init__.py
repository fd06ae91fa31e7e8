"""Put the commands together, run one, and report its errors."""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import traceback

import typer

from ebbtide.cli import (
    archive,
    backups,
    broker,
    check,
    checkpoint,
    completion,
    demo,
    doctor,
    fork,
    history,
    new,
    offsets,
    pipelines,
    plan,
    replay,
    reprocess,
    rewind,
    sinks,
    state,
    topics,
    ui,
    warm,
)
from ebbtide.cli.commands import EPILOGS, Command, PlainCommand, PlainGroup, option
from ebbtide.cli.output import begin, log_line
from ebbtide.errors import EbbtideError, mask
from ebbtide.version import __version__

__all__ = ["app", "main"]
_GARBAGE = 100_000
"""After how many new values Python looks for garbage; 700 by default."""

app = typer.Typer(
    name="ebbtide",
    cls=PlainGroup,
    help="Rewind and replay Spark Structured Streaming.",
    epilog="First steps: ebbtide demo · ebbtide jobs · ebbtide doctor",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_BROKER = typer.Typer(name="broker", help="Control the embedded Kafka broker.")
_STATE = typer.Typer(name="state", help="Show the state that a query keeps between batches.")
_WARM = typer.Typer(name="warm", help="Control the JVM that reprocess --warm keeps.")
_GENERATE = typer.Typer(name="generate", help="Generate test data from a seed.")
_TREE: dict[str, tuple[Command | typer.Typer, ...]] = {
    "Operate on a checkpoint": (
        *(checkpoint.inspect, checkpoint.verify, check.check, history.history, offsets.offsets),
        *(rewind.rewind, rewind.apply, backups.undo, backups.backups, sinks.sinks),
        *(fork.fork, replay.replay, _STATE, ui.ui),
    ),
    "Run pipelines": (pipelines.run, archive.archive, pipelines.jobs, new.new),
    "Reprocess": (reprocess.reprocess, reprocess.retry, plan.plan, _WARM),
    "Try it out": (
        *(demo.demo, topics.produce, topics.consume, _BROKER, _GENERATE, doctor.doctor),
        completion.completion,
    ),
}


def _add(parent: typer.Typer, entry: Command | typer.Typer, panel: str | None = None) -> None:
    if isinstance(entry, typer.Typer):
        parent.add_typer(entry, cls=PlainGroup, no_args_is_help=True, rich_help_panel=panel)
    else:
        parent.command(cls=PlainCommand, epilog=EPILOGS[entry], rich_help_panel=panel)(entry)


for entry in (broker.start, broker.stop, broker.status):
    _add(_BROKER, entry)
for entry in (warm.status, warm.stop):
    _add(_WARM, entry)
for entry in (state.show, state.diff):
    _add(_STATE, entry)
_add(_GENERATE, topics.visits)
for panel, entries in _TREE.items():
    for entry in entries:
        _add(app, entry, panel)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ebbtide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = option("--version", "Show the version.", callback=_show_version, is_eager=True),
) -> None:
    del version


def main() -> None:
    """Run a command. An expected error is one line on stderr; a bug keeps its traceback."""
    # a large checkpoint is a million values that all stay: looking for garbage is a third of its
    # reading
    gc.set_threshold(_GARBAGE)
    atexit.register(gc.freeze)  # nor need it look through them once more when the process ends
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files may be no Unicode
            stream.reconfigure(errors="backslashreplace")
    begin()
    completion.prepare_completion()
    try:
        app(prog_name="ebbtide")
    except EbbtideError as error:
        log_line(f"Error: {error}", style="bold red")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our stdout, such as `head`, has gone: end without a second complaint
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception:
        sys.stderr.write(mask(traceback.format_exc()))
        sys.exit(1)
