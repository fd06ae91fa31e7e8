"""The command `ebbtide doctor`, which checks the installation and shows how to fix it."""

from __future__ import annotations

import importlib.util
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import typer

from ebbtide import runtime
from ebbtide.cli import options
from ebbtide.cli.commands import command, option
from ebbtide.cli.output import (
    ensure_jars,
    progress_always,
    show_json,
    show_table,
    show_text,
)
from ebbtide.cli.packages import find_unfit
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, pip_line

_SPARK = {
    "pyspark": "pyspark",
    "pandas": "pandas",
    "pyarrow": "pyarrow",
    "protobuf": "google.protobuf",
}
"""Distributions of the extra `spark`, and a module of each."""
_STORES = {"s3": "s3fs", "azure": "adlfs", "gcs": "gcsfs", "hdfs": "requests"}
"""Extras for stores, and a module of each."""


@dataclass(frozen=True)
class Finding:
    """The result of one check of the installation."""

    what: str
    ok: bool
    found: str
    fix: str = ""


@command(
    "ebbtide doctor",
    "ebbtide doctor --fix",
    "ebbtide doctor --java-home",
    "ebbtide doctor --kafka-config client.properties",
)
def doctor(
    environment: options.KafkaOptions,
    fix: bool = option("--fix", "Download the jars if they are missing."),
    java_home: bool = option(
        "--java-home", "Only print the JAVA_HOME with which your own programs find that Java."
    ),
    output: options.Output = options.OUTPUT,
) -> None:
    """Check Java, Spark, jars, broker and home; exit 1 if something is missing."""
    if java_home:
        _show_java_home(output)
        return
    failure = _fix() if fix else None
    findings = list(_examine(environment.settings))
    if output == "json":
        show_json([asdict(finding) for finding in findings])
    else:
        _show(findings)
    if failure is not None and failure.problem not in [finding.found for finding in findings]:
        raise failure
    if not all(finding.ok for finding in findings):
        raise typer.Exit(1)


def _show_java_home(output: str) -> None:
    home = str(runtime.java.spark_java_home())
    if output == "json":
        show_json({"java_home": home})
    else:
        show_text(home)


def _show(findings: list[Finding]) -> None:
    """Show a table, and below it what to type: a command in a column could not be copied."""
    rows = [("✓" if f.ok else "✗", f.what, f.found) for f in findings]
    show_table(("", "what", "found"), rows, folds="found")
    for finding in findings:
        if finding.fix:
            aim = "add others" if finding.ok else "fix it"
            show_text(f"{finding.what}: to {aim}, type\n  {finding.fix}")


def _fix() -> EbbtideError | None:
    """Download the jars and prepare faster starts; returns why that failed, if it did."""
    from ebbtide.local import is_warm, warm_up

    try:
        ensure_jars()
        if not is_warm():
            with progress_always("Preparing faster starts (once, about half a minute)"):
                warm_up()
    except EbbtideError as error:
        return error
    return None


def _examine(settings: Settings) -> Iterator[Finding]:
    yield _examine_python()
    yield _examine_spark()
    yield from _examine_versions()
    yield _examine_java()
    yield _examine_jars()
    yield _examine_stores()
    yield _examine_broker(settings)
    yield _examine_home(settings)


def _examine_home(settings: Settings) -> Finding:
    from ebbtide.storage import open_folder

    if settings.url:
        try:
            open_folder(settings.url).names()
        except EbbtideError as error:
            return Finding("home", False, error.problem, error.next_step)
        return Finding("home", True, f"{settings.url} can be read")
    # the home may not exist yet: then it must be possible to create it
    folders = (settings.home.absolute(), *settings.home.absolute().parents)
    existing = next(folder for folder in folders if folder.exists())
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    return Finding("home", writable, str(settings.home), "" if writable else "--home ANOTHER")


def _examine_broker(settings: Settings) -> Finding:
    from ebbtide.connectors.kafka import find_problem
    from ebbtide.local import find_broker

    if settings.names_kafka:
        connection = settings.kafka
        if (problem := find_problem(connection)) is not None:
            return Finding("Kafka", False, problem.problem, problem.next_step)
        return Finding("Kafka", True, f"answers at {connection}")
    broker = find_broker(settings.broker)
    where = f"runs at {broker.bootstrap_servers}" if broker else "not running"
    return Finding("broker", True, where)


def _examine_python() -> Finding:
    version = platform.python_version()
    try:
        row = runtime.versions.spark_row()
    except EbbtideError:  # the next finding is about Spark
        return Finding("Python", True, version)
    if row.runs_on(version) or (row.imports_distutils and _is_installed("distutils")):
        return Finding("Python", True, version)
    if row.imports_distutils:
        found = f"{version} has no distutils, which Spark {row.minor} imports"
        return Finding("Python", False, found, "pip install setuptools")
    oldest, newest = row.python
    found = f"{version}, and Spark {row.minor} runs on {oldest} to {newest}"
    return Finding("Python", False, found, f"python{newest} -m venv .venv")


def _examine_spark() -> Finding:
    missing = [name for name, module in _SPARK.items() if not _is_installed(module)]
    if missing:
        return Finding("Spark", False, f"no {', '.join(missing)}", pip_line("spark"))
    try:
        row = runtime.versions.spark_row()
    except EbbtideError as error:
        return Finding("Spark", False, error.problem, error.next_step.removeprefix("Type: "))
    brought = [f"{what} {version}" for what, version in runtime.java.connectors().items()]
    parts = [f"pyspark {runtime.versions.spark_version()}", f"Scala {row.scala}", *brought]
    lacking = "" if brought else ", no Kafka connector and no Delta yet"
    return Finding("Spark", True, ", ".join(parts) + lacking)


def _examine_versions() -> Iterator[Finding]:
    """What is installed in a version that Ebbtide or Spark does not work with."""
    for unfit in find_unfit():
        found = f"{unfit.version}, and {unfit.wanted_by} needs {unfit.wanted}"
        yield Finding(unfit.name, False, found, f"pip install '{unfit.name}{unfit.wanted}'")


def _examine_stores() -> Finding:
    """Which stores can be reached; none is needed on a local disk."""
    missing = [extra for extra, module in _STORES.items() if not _is_installed(module)]
    found = ", ".join(extra for extra in _STORES if extra not in missing) or "local disks"
    fix = pip_line(*missing) if missing else ""
    return Finding("stores", True, found, fix)


def _is_installed(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _examine_java() -> Finding:
    java = runtime.java
    try:
        home = java.find_java()
    except EbbtideError as error:
        return Finding(java.format_javas(), False, error.problem, java.install_java())
    return Finding(java.format_javas(), True, f"{home.version} from {home.origin}")


def _examine_jars() -> Finding:
    java = runtime.java
    try:
        wrong = java.missing_jars(checksums=True)
    except EbbtideError as error:
        return Finding("jars", False, error.problem, error.next_step.removeprefix("Type: "))
    if wrong:
        return Finding("jars", False, f"{len(wrong)} missing or damaged", "ebbtide doctor --fix")
    sets = " and ".join(java.locked_name(set_) for set_ in java.ALL)
    folder = java.cache_folder() / "jars"
    return Finding("jars", True, f"{len(java.locked_jars())} of {sets} in {folder}")
