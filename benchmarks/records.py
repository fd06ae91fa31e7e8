"""The file that keeps results: each work with its date, command, machine and versions."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

from benchmarks.environments import PEERS, find_jdk
from benchmarks.measure import ContenderError, Ratio, Result
from ebbtide.config import write_whole
from ebbtide.runtime import java

_PINNED = re.compile(r"^([a-z-]+)(?:\[\w+\])?==(\S+)", re.MULTILINE)


@dataclass(frozen=True)
class Entry:
    """What one benchmark found, and where and when."""

    benchmark: str
    made: str
    """When it ended, in UTC."""
    seconds: float
    command: str
    quick: bool
    machine: Mapping[str, Any]
    versions: Mapping[str, str]
    results: tuple[Result, ...]
    lines: tuple[str, ...] = ()
    """What it printed, where the results are no table."""
    ratios: tuple[Ratio, ...] = ()

    @property
    def title(self) -> str:
        """Its heading, such as "Small batch"."""
        return self.benchmark.replace("-", " ").capitalize()

    def to_dict(self) -> dict[str, Any]:
        """As the file holds it."""
        saved = {**vars(self), "results": [result.to_dict() for result in self.results]}
        return {**saved, "ratios": [vars(ratio) for ratio in self.ratios]}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> Entry:
        """The entry that was saved."""
        found = {
            "results": tuple(map(Result.from_dict, saved["results"])),
            "lines": tuple(saved.get("lines", ())),
            "ratios": tuple(Ratio(**ratio) for ratio in saved.get("ratios", ())),
        }
        return cls(**{**saved, **found})

    @classmethod
    def now(
        cls,
        name: str,
        seconds: float,
        results: Iterable[Result],
        lines: Iterable[str] = (),
        ratios: Iterable[Ratio] = (),
        *,
        quick: bool,
    ) -> Entry:
        """Of a benchmark that has just ended."""
        at = datetime.now(timezone.utc).isoformat(timespec="seconds")
        command = f"python -m benchmarks {name}{' --quick' if quick else ''}"
        found = (tuple(results), tuple(lines), tuple(ratios))
        return cls(name, at, seconds, command, quick, _machine(), _versions(), *found)


def read_entries(file: Path) -> list[Entry]:
    """The entries of a file; none if it does not exist."""
    if not file.exists():
        return []
    return [Entry.from_dict(saved) for saved in json.loads(file.read_text("utf-8"))["entries"]]


def keep_entry(file: Path, entry: Entry) -> None:
    """Add an entry to a file in place of an older one of the same benchmark."""
    others = [each for each in read_entries(file) if each.benchmark != entry.benchmark]
    entries = [each.to_dict() for each in [*others, entry]]
    write_whole(file, json.dumps({"entries": entries}, indent=1, ensure_ascii=False) + "\n")


def _machine() -> dict[str, Any]:
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_bytes": psutil.virtual_memory().total,
        "system": platform.system(),
        # what else ran: above the number of cores the wall times say little
        "load_average": os.getloadavg()[0],
    }


def _processor() -> str:
    try:
        match = re.search(r"model name\s*: (.+)", Path("/proc/cpuinfo").read_text("utf-8"))
    except OSError:
        return platform.processor()
    return match[1] if match else platform.machine()


def _versions() -> dict[str, str]:
    """Of Ebbtide and what it runs on, and of each peer as pinned."""
    found = {"Python": platform.python_version(), "Java": str(java.find_java().version)}
    found["Ebbtide"] = f"{version('ebbtide')} ({_commit()})"
    found |= {name: version(name) for name in ("pyspark", "pyarrow", "pandas")}
    found |= java.connectors()
    for jar in java.locked_jars("broker"):
        if match := re.fullmatch(r"kafka_2\.\d+-([\d.]+)\.jar", jar.name):
            found["Kafka broker"] = match[1]
    with suppress(ContenderError, OSError):
        asked = [str(find_jdk() / "javac"), "-version"]
        answer = subprocess.run(asked, capture_output=True, text=True, check=False)
        found["Flink's Java"] = answer.stdout.split()[-1]
    for requirements in sorted(PEERS.glob("*.in")):
        found |= dict(_PINNED.findall(requirements.read_text("utf-8")))
    return found


def _commit() -> str:
    answer = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=PEERS,
        capture_output=True,
        text=True,
        check=False,
    )
    return answer.stdout.strip() or f"no git, {sys.platform}"
