"""Arguments of the command line: exit code 0, 1 or 2, and no traceback.

Commands that only read, or that change a small checkpoint, are run. Those that would start Spark, a
broker or a server only parse their arguments.
"""

from __future__ import annotations

import io
import os
import sys
from contextlib import redirect_stderr, redirect_stdout, suppress
from functools import cache
from pathlib import Path
from typing import Any

import typer.main

from ebbtide import cli
from tests.fuzz.target import Target, scratch
from tests.hostile import Case, make_case
from tests.trees import Shape

_RUN = {
    *("inspect", "verify", "history", "offsets", "rewind", "apply", "undo", "backups", "sinks"),
    *("fork", "jobs", "--version", "--help", "-h", "completion"),
}
"""Commands that are run; what they write goes into a folder of ours."""
_get_command = cache(typer.main.get_command)


class TracebackError(AssertionError):
    """The command line has shown a traceback, or ended with another exit code."""


@cache
def _case() -> Case:
    home = scratch() / "command-line"
    home.mkdir()
    case = make_case(home, Shape("changelog", batches=4, partitions=1, operator_metadata="v1"))
    typer.main.get_command = _get_command  # the tree of commands is built once
    os.environ["EBBTIDE_HOME"] = str(home / "home")
    os.environ["XDG_STATE_HOME"] = str(home / "state")
    return case


def _run(data: bytes) -> None:
    """Arguments, a line each; none has a NUL. `@` is the folder of the checkpoint's files."""
    case = _case()
    os.chdir(case.home)
    text = os.fsdecode(data.replace(b"\0", b"")).replace("@", str(case.home))
    words = text.split("\n")[:40]
    if set(words) & _RUN and words[0] in _RUN and not _leads_out(words, case.home):
        _call(words)
    else:
        _parse(words)


def _leads_out(words: list[str], home: Path) -> bool:
    """Whether a command would write, or read for long, outside of the case."""
    paths = (word.rpartition("=")[2] for word in words)
    return any(
        "://" in path
        or (path.startswith(("/", "~")) and not _is_below(path, home))
        or ".." in path.split("/")
        for path in paths
        if "\0" not in path
    )


def _is_below(path: str, home: Path) -> bool:
    return os.path.realpath(os.path.expanduser(path)).startswith(str(home))


def _call(words: list[str]) -> None:
    out, err, code = io.StringIO(), io.StringIO(), 0
    before = sys.argv
    sys.argv = ["ebbtide", *words]
    try:
        with redirect_stdout(out), redirect_stderr(err):
            cli.main()
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    finally:
        sys.argv = before
    if code not in (0, 1, 2) or "Traceback" in err.getvalue():
        raise TracebackError(f"exit code {code}: {words}\n{err.getvalue()[-3000:]}")


def _parse(words: list[str]) -> None:
    """What Typer makes of the arguments of each command, callbacks included."""
    command: Any = typer.main.get_command(cli.app)
    context = command.make_context("ebbtide", [], resilient_parsing=True)
    context.resilient_parsing = False
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        with suppress(typer.Exit, typer.Abort, SystemExit):
            try:
                while words and hasattr(command, "commands"):
                    _, command, words = command.resolve_command(context, words)
                command.make_context("x", list(words), parent=context)
            except Exception as error:
                if not hasattr(error, "exit_code"):
                    raise


_LINES = (
    "inspect @/c -o json",
    "inspect @/c --since 2026-01-05T10:00 --limit 5",
    "verify @/c -o json",
    "history @/c --timezone Europe/Warsaw -o json",
    "backups @/c",
    "backups @/c --prune --keep 1 --yes",
    "rewind @/c --to-batch 2 --assume-stopped --sink none",
    "rewind @/c --shift-by -1 --replan --assume-stopped -o json",
    "rewind @/c --to-datetime 2026-01-05T10:00 --assume-stopped",
    "rewind @/c --by-duration PT2H --assume-stopped",
    'rewind @/c --to-offsets {"visits":{"0":2}} --assume-stopped',
    "rewind @/c --to-latest-good --sink-files @/sink --save-plan @/saved.json --assume-stopped",
    "rewind @/c --to-event-time 2026 --event-time-field at --assume-stopped",
    "apply @/plan.json --assume-stopped",
    "undo @/c --assume-stopped",
    "offsets @/c --at-batch 0 -o json",
    "fork @/c @/fork --at-batch 2 --assume-stopped",
    "sinks @/c --search @/sink",
    "jobs -o json",
    "--version",
    "reprocess visits --event-time-start 2026-01-05 --event-time-end 2026-01-06 --chunk PT1H",
    "run visits-counter --trigger 20 --max-offsets-per-trigger 5 --conf a=b",
    "generate visits --seed 5 --count 10",
    "broker start --port 9092",
    "ui --port 8080 --read-only",
    "state show @/c --at-batch 2",
    "consume visits --from-beginning --max 5 --timeout 3 --kafka-config @/none",
    "retry last --home @/home",
)
TARGETS = (
    Target(
        "command-line",
        lambda: [line.replace(" ", "\n").encode() for line in _LINES],
        _run,
        share=4,
        largest=1 << 12,
        native=True,
    ),
)
