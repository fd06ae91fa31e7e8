"""The command line: a thin face on the core. Errors are caught here, once."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

import typer

from ebbtide import __version__
from ebbtide.cli import (
    archive,
    backups,
    broker,
    checkpoint,
    demo,
    doctor,
    fork,
    history,
    new,
    options,
    pipelines,
    plan,
    replay,
    reprocess,
    rewind,
    state,
    topics,
    ui,
)
from ebbtide.cli.output import log_line
from ebbtide.errors import EbbtideError

app = typer.Typer(
    name="ebbtide",
    help="Rewind and replay Spark Structured Streaming.",
    epilog="First steps: ebbtide demo · ebbtide jobs · ebbtide doctor",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    context_settings={"help_option_names": ["-h", "--help"]},
)
_COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    "Operate on a checkpoint": (
        *(checkpoint.inspect, checkpoint.verify, history.history, fork.fork, replay.replay, ui.ui),
    ),
    "Run pipelines": (pipelines.run, archive.archive, pipelines.jobs, new.new),
    "Reprocess": (plan.plan,),
    "Try it out": (doctor.doctor, topics.produce, topics.consume),
}
for panel, commands in _COMMANDS.items():
    for command in commands:
        app.command(rich_help_panel=panel, epilog=options.EPILOGS[command])(command)
for group in (broker.app, topics.generate):
    app.add_typer(group, rich_help_panel="Try it out")
for module in (rewind, backups, state, reprocess, demo):
    module.register(app)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ebbtide {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    del version


def main() -> None:
    """Run a command; a known error is one line on stderr, a bug keeps its traceback."""
    try:
        app()
    except EbbtideError as error:
        log_line(f"Error: {error}", style="bold red")
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        # the reader of our stdout, such as `head`, has gone: end without a second complaint
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
