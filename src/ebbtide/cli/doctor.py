"""The command `ebbtide doctor`, which checks the installation and shows how to fix it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata

import typer

from ebbtide import runtime
from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import ensure_jars, show_json, show_table, stderr
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError

_SPARK = {
    "pyspark": "pyspark",
    "delta-spark": "delta",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "protobuf": "google.protobuf",
}
"""Distributions of the extra `spark`, and a module of each."""


@dataclass(frozen=True)
class Finding:
    """The result of one check of the installation."""

    what: str
    ok: bool
    found: str
    fix: str = ""


@command("ebbtide doctor", "ebbtide doctor --fix")
def doctor(
    environment: options.HomeOptions,
    fix: bool = option("--fix", "Download the jars if they are missing."),
    output: options.Output = options.OUTPUT,
) -> None:
    """Check Java, Spark, jars, broker and home; exit 1 if something is missing."""
    from ebbtide.local import is_warm, warm_up

    settings = environment.settings
    if fix:
        ensure_jars()
        if not is_warm():
            with stderr().status("Preparing faster starts (once, about half a minute) …"):
                warm_up()
    findings = list(_examine(settings))
    if output == "json":
        show_json([asdict(finding) for finding in findings])
    else:
        show_table(
            ("", "what", "found", "to fix it, type"),
            [("✓" if f.ok else "✗", f.what, f.found, f.fix) for f in findings],
        )
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _examine(settings: Settings) -> Iterator[Finding]:
    from ebbtide.local import find_broker

    yield Finding("Python", True, platform.python_version())
    yield _examine_spark()
    yield _examine_java()
    yield _examine_jars()
    broker = find_broker(settings.broker)
    where = f"runs at {broker.bootstrap_servers}" if broker else "not running"
    yield Finding("broker", True, where)
    # the home may not exist yet: then it must be possible to create it
    folders = (settings.home.absolute(), *settings.home.absolute().parents)
    existing = next(folder for folder in folders if folder.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    yield Finding("home", writable, str(settings.home), "" if writable else "--home ANOTHER")


def _examine_spark() -> Finding:
    missing = [name for name, module in _SPARK.items() if not _is_installed(module)]
    if missing:
        return Finding("Spark", False, f"no {', '.join(missing)}", "pip install 'ebbtide[spark]'")
    versions = f"pyspark {metadata.version('pyspark')}, Delta {metadata.version('delta-spark')}"
    return Finding("Spark", True, versions)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _examine_java() -> Finding:
    try:
        home = runtime.java.find_java()
    except EbbtideError as error:
        return Finding("Java 17 or 21", False, error.problem, runtime.java.INSTALL_JAVA)
    return Finding("Java 17 or 21", True, f"{home.version} from {home.origin}")


def _examine_jars() -> Finding:
    java = runtime.java
    if wrong := java.missing_jars(checksums=True):
        return Finding("jars", False, f"{len(wrong)} missing or damaged", "ebbtide doctor --fix")
    return Finding("jars", True, f"{len(java.locked_jars())} in {java.jar_folder()}")
