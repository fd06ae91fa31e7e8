"""`ebbtide new`: a name in, a small project out that runs and tests as it is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import log_line, show_json, show_table
from ebbtide.errors import EbbtideError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILES = {
    "pipeline.py": "the pipeline: what to compute, from where, to where",
    "test_pipeline.py": "its tests: as a stream, as a batch, across a crash",
    "README.md": "how to run it, and its ways back",
    "Makefile": "make test, make run",
    ".gitignore": "what is not for the repository",
}


@options.examples("ebbtide new clicks", "ebbtide new visits -o json")
def new(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="For the project's folder, its pipeline and its topics.",
            show_default=False,
        ),
    ],
    output: options.Output = "table",
    home: options.UnusedHome = None,
    bootstrap_servers: options.UnusedServers = None,
) -> None:
    """Make a small project in a folder of its own, which runs and tests as it is."""
    del home, bootstrap_servers
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a project.",
            "Use letters, digits, . _ - (at most 64, no spaces, no slashes).",
        )
    folder = Path(name)
    _make_project(folder, name)
    if output == "json":
        files = [str(folder / file) for file in _FILES]
        show_json({"name": name, "folder": str(folder.absolute()), "files": files})
    else:
        show_table(("made", ""), [(folder / file, what) for file, what in _FILES.items()])
    if importlib.util.find_spec("pytest") is None:
        log_line(f"Its tests need pytest. Type: {sys.executable} -m pip install 'ebbtide[testing]'")
    log_line(f"Next: cd {name} && make test")


def _make_project(folder: Path, name: str) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder.absolute()} exists and is not an empty folder.", "Choose another name."
            )
        folder.mkdir(exist_ok=True)
        for file in _FILES:
            (folder / file).write_text(_fill(file, name), "utf-8")
    except OSError as error:
        raise EbbtideError(
            f"Cannot write to {folder.absolute()}: {error.strerror}.", "Go to another folder."
        ) from None


def _fill(file: str, name: str) -> str:
    """The text of a file of the project."""
    from importlib import resources

    # named so that neither git nor pytest takes them for its own
    template = resources.files("ebbtide") / "templates" / "project" / f"{file.lstrip('.')}.txt"
    python = sys.executable
    if file == "Makefile":
        python = python.replace("$", "$$").replace("#", r"\#")
    return template.read_text("utf-8").replace("{{name}}", name).replace("{{python}}", python)
