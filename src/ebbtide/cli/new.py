"""The command `ebbtide new`, which creates a small project that runs and tests as it is."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

from ebbtide.cli import options
from ebbtide.cli.commands import argument, command
from ebbtide.cli.output import log_line, show_json, show_table
from ebbtide.errors import EbbtideError, UsageError

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_FILES = {
    "pipeline.py": "the pipeline: what it computes, reads and writes",
    "test_pipeline.py": "its tests: as a stream, as a batch, across a crash",
    "README.md": "how to run it, rewind it and reprocess",
    "Makefile": "make test, make run",
    ".gitignore": "what does not belong into the repository",
}


@command("ebbtide new clicks", "ebbtide new visits -o json")
def new(
    name: str = argument("NAME", "Name of the folder, the pipeline and its topics."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Create a small project in its own folder, ready to run and test."""
    if not _NAME.fullmatch(name):
        raise UsageError(
            f"{name!r} is not a name for a project.",
            "Use letters, digits, . _ - (at most 64, no spaces, no slashes).",
        )
    folder = Path(name)
    _create_project(folder, name)
    if output == "json":
        files = [str(folder / file) for file in _FILES]
        show_json({"name": name, "folder": str(folder.absolute()), "files": files})
    else:
        show_table(("created", ""), [(folder / file, what) for file, what in _FILES.items()])
    if importlib.util.find_spec("pytest") is None:
        log_line(f"Its tests need pytest: {sys.executable} -m pip install pytest")
    log_line(f"Next: cd {name} && make test")


def _create_project(folder: Path, name: str) -> None:
    try:
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UsageError(
                f"{folder.absolute()} exists and is not an empty folder.", "Choose another name."
            )
        folder.mkdir(exist_ok=True)
        for file in _FILES:
            (folder / file).write_text(_fill_template(file, name), "utf-8")
    except OSError as error:
        raise EbbtideError(
            f"Cannot write to {folder.absolute()}: {error.strerror}.", "Go to another folder."
        ) from None


def _fill_template(file: str, name: str) -> str:
    from importlib import resources

    # named so that neither git nor pytest takes them for its own
    template = resources.files("ebbtide") / "templates" / "project" / f"{file.lstrip('.')}.txt"
    python = sys.executable
    if file == "Makefile":
        python = python.replace("$", "$$").replace("#", r"\#")
    return template.read_text("utf-8").replace("{{name}}", name).replace("{{python}}", python)
