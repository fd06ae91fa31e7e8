"""`ebbtide doctor`: what is found, what is missing, and the line that fixes it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Annotated

import typer

from ebbtide.cli import options
from ebbtide.cli.output import ensure_jars, show_json, show_table, stderr
from ebbtide.config import Settings, load_settings
from ebbtide.errors import EbbtideError


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    what: str
    ok: bool
    found: str
    fix: str = ""


@options.examples("ebbtide doctor", "ebbtide doctor --fix")
def doctor(
    fix: Annotated[bool, typer.Option("--fix", help="Fetch the jars if they are missing.")] = False,
    home: options.Home = None,
    output: options.Output = "table",
) -> None:
    """Say what Ebbtide finds here; exit 1 if something is missing."""
    settings = load_settings(home=home)
    if fix:
        ensure_jars()
        _warm_up()
    findings = [look(settings) for look in (_python, _spark, _java, _jars, _broker, _home)]
    if output == "json":
        show_json([asdict(finding) for finding in findings])
    else:
        show_table(
            ("", "what", "found", "to fix it, type"),
            [("✓" if f.ok else "✗", f.what, f.found, f.fix) for f in findings],
        )
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _warm_up() -> None:
    from ebbtide.local.warmup import is_warm, warm_up

    if is_warm():
        return
    with stderr().status("Preparing faster starts (once, about half a minute) …"):
        warm_up()


def _python(_settings: Settings) -> Finding:
    return Finding("Python", True, platform.python_version())


def _spark(_settings: Settings) -> Finding:
    wanted = ("pyspark", "delta-spark", "pandas", "pyarrow", "protobuf")
    modules = ("pyspark", "delta", "pandas", "pyarrow", "google.protobuf")
    missing = [name for name, module in zip(wanted, modules, strict=True) if not _there(module)]
    if missing:
        return Finding("Spark", False, f"no {', '.join(missing)}", "pip install 'ebbtide[spark]'")
    return Finding(
        "Spark",
        True,
        f"pyspark {metadata.version('pyspark')}, Delta {metadata.version('delta-spark')}",
    )


def _there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _java(_settings: Settings) -> Finding:
    from ebbtide.runtime import java as jvm

    def found() -> str:
        java = jvm.find_java()
        return f"{java.version} from {java.origin}"

    return _try("Java 17 or 21", found, jvm.BRING_JAVA)


def _jars(_settings: Settings) -> Finding:
    from ebbtide.runtime import java as jvm

    wrong = jvm.missing_jars(checksums=True)
    if wrong:
        return Finding("jars", False, f"{len(wrong)} missing or damaged", "ebbtide doctor --fix")
    return Finding("jars", True, f"{len(jvm.locked_jars())} in {jvm.jar_folder()}")


def _broker(settings: Settings) -> Finding:
    from ebbtide.local.broker import find_broker

    broker = find_broker(settings.broker)
    return Finding(
        "broker", True, f"runs at {broker.bootstrap_servers}" if broker else "not running"
    )


def _home(settings: Settings) -> Finding:
    """Whether the home can be written, or made; a doctor does not make it."""
    home = settings.home.absolute()
    there = next(folder for folder in (home, *home.parents) if folder.exists())
    writable = there.is_dir() and os.access(there, os.W_OK)
    return Finding("home", writable, str(settings.home), "" if writable else "--home ANOTHER")


def _try(what: str, look: Callable[[], str], fix: str) -> Finding:
    try:
        return Finding(what, True, look())
    except EbbtideError as error:
        return Finding(what, False, error.problem, fix)
