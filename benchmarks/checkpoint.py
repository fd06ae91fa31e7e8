"""How long `inspect` and a plan take on a large checkpoint, against a bare listing of it."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from tests.trees import Shape, make

_COMMANDS = {
    "inspect": ["inspect", "-o", "json"],
    "plan, the last 10 batches": [
        *("rewind", "--shift-by", "-10", "--sink", "none", "--assume-stopped", "-o", "json"),
    ],
}


def run(*, quick: bool) -> Iterator[str]:
    """inspect and plan against a bare listing (os.walk): at most 3 times as long, plus 0.5 s."""
    batches, partitions = (100, 10) if quick else (1_000, 200)
    for layout in ("hdfs", "rocksdb"):
        with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as place:
            folder = _make_large(Path(place), layout, batches, partitions)
            files, listing = _list(folder)
            yield (
                f"{layout}: {batches:,} batches, {partitions} partitions, 2 operators, "
                f"{files:,} files; listing {listing:.2f} s"
            )
            for name, command in _COMMANDS.items():
                seconds, megabytes = _measure([command[0], str(folder), *command[1:]])
                limit = 3 * listing + 0.5
                yield (
                    f"{layout}: {name}: {seconds:.2f} s, {seconds / listing:.2f} × the listing "
                    f"({seconds / limit:.0%} of what is allowed), {megabytes:.0f} MB"
                )


def _make_large(folder: Path, layout: str, batches: int, partitions: int) -> Path:
    """One store, built, and its files under as many more names as there are partitions."""
    make(folder, Shape(layout, batches=batches, partitions=1, snapshot_every=10))
    for log in (folder / "offsets").iterdir():
        if log.name.isdigit():
            text = log.read_text().replace('partitions": "1"', f'partitions": "{partitions}"')
            log.write_text(text)
    first = folder / "state" / "0" / "0"
    places = [(directory, files) for directory, _, files in os.walk(first)]
    for operator in range(2):
        for partition in range(partitions):
            store = folder / "state" / str(operator) / str(partition)
            for directory, files in places if store != first else ():
                target = store / Path(directory).relative_to(first)
                target.mkdir(parents=True)
                for name in files:
                    os.link(f"{directory}/{name}", f"{target}/{name}")
    return folder


def _list(folder: Path) -> tuple[int, float]:
    """Files, and the best time of three."""
    best = float("inf")
    for _ in range(3):
        began = time.perf_counter()
        files = sum(len(names) for _, _, names in os.walk(folder))
        best = min(best, time.perf_counter() - began)
    return files, best


def _measure(arguments: list[str]) -> tuple[float, float]:
    """The best time of three of a command, its start included, and its largest memory."""
    best, memory = float("inf"), 0.0
    for _ in range(3):
        began = time.perf_counter()
        process = subprocess.Popen(
            [sys.executable, "-m", "ebbtide", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, status, usage = os.wait4(process.pid, 0)
        best = min(best, time.perf_counter() - began)
        if status:
            raise RuntimeError(process.stderr.read() if process.stderr else "")
        memory = max(memory, _megabytes(usage))
    return best, memory


def _megabytes(usage: resource.struct_rusage) -> float:
    unit = 1 if sys.platform == "darwin" else 1024
    return usage.ru_maxrss * unit / 1e6
