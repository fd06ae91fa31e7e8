"""What every test can use: the command line as a process, and no silent skips."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

ALLOWED_SKIPS: tuple[str, ...] = ()
"""The only reasons for which a test may be skipped; any other skip fails the run."""

SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"
"""For JVMs that live seconds or minutes: less compiling, which only a longer life would repay, with
room to keep what was compiled; and no threads that collect garbage beside the work."""

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Plans run as they are, not as Java made and compiled for each: over a handful of rows that is
most of the work. The walks and the cluster run them compiled, as users do."""

NO_LINKS = {
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    )
}
"""The same files are written and renamed in a checkpoint, but none is asked first whether it is a
link, for which Hadoop starts a process, a dozen a batch. The walks let it ask."""

QUICK_PROGRAM = " ".join(
    [SHORT_LIVED, *(f"-D{name}={value}" for name, value in {**INTERPRETED, **NO_LINKS}.items())]
)
"""Java's options for a program of a few rows that makes its own session of Spark."""

# what tests use lately is no affair of the developer's own list
_STATE = tempfile.TemporaryDirectory(prefix="ebbtide-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

# a property is true or not, however busy the machine is
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def cli() -> Cli:
    """Run `ebbtide` as a user does."""

    def run(
        *arguments: str | Path,
        stdin: str | None = None,
        timeout: float = 120,
        cwd: Path | None = None,
        **environment: str,
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "ebbtide", *map(str, arguments)],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            cwd=cwd,
            env={**os.environ, **environment},
            check=False,
        )

    return run


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folder is the marker."""
    for item in items:
        top, group = (*item.nodeid.split("/"), "")[:2]
        known = top == "tests" and group in ("cluster", "crash", "page", "spark", "e2e")
        item.add_marker(group if known else "unit")


def pytest_collection_finish() -> None:
    """All that was imported stays: the search for garbage need not go through it each time."""
    gc.freeze()
    gc.set_threshold(50_000)


_skipped: list[str] = []


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(allowed in reason for allowed in ALLOWED_SKIPS):
            _skipped.append(f"{report.nodeid}: {reason}")


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in _skipped:
        terminalreporter.write_line(f"Skipped without leave: {line}", red=True)
