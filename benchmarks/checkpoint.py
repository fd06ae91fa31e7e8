"""What the commands on a checkpoint take, against its size and a bare listing of it."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.measure import Measurement, Progress, Ratio, measure
from tests.trees import Shape, make, rewrite_logs

_OPERATORS = 2
_ROUNDS = 3
_READ = 30
"""So many of the last versions have contents where only names are counted: what a plan reads."""
_SHAPES = {
    "hdfs": (Shape("hdfs"), 450),
    "rocksdb": (Shape("rocksdb"), 250),
    "changelog": (Shape("changelog"), 410),
    "v2": (Shape("v2"), 410),
    "v2, offsets v2": (Shape("v2", offsets="v2"), 410),
    "v2-zips": (Shape("v2-zips"), 250),
}
"""By format: what is built, and with how many batches it has 400,000 files in 400 stores."""
_LIGHT = {"inspect": ["inspect"], "plan": ["rewind", "--shift-by", "-10", "--sink", "none"]}
_HEAVY = {
    "verify": ["verify"],
    "apply": ["rewind", "--shift-by", "-10", "--sink", "none", "--execute", "--yes"],
    "undo": ["undo", "--yes"],
}


@dataclass(frozen=True)
class Spent:
    """Time of one listing or of one command."""

    seconds: float
    cpu_seconds: float


def run(*, quick: bool) -> Iterator[str | Ratio]:
    """inspect and plan at most 3 times a bare listing (os.walk) + 0.5 s; growth with the tree"""
    with tempfile.TemporaryDirectory(prefix="ebbtide-bench-") as place:
        folder = Path(place)
        make(folder / "small", Shape("v2"))
        _command(folder, ["inspect"], folder / "small")  # an installed package has its bytecode
        yield from _against_listing(folder, quick=quick)
        yield from _against_size(folder, quick=quick)
        yield from _requests(folder, quick=quick)


def _shapes(*, quick: bool) -> list[tuple[str, tuple[Shape, int]]]:
    return [each for each in _SHAPES.items() if not quick or each[0] in ("hdfs", "v2-zips")]


def _against_listing(folder: Path, *, quick: bool) -> Iterator[str | Ratio]:
    worst = dict.fromkeys(_LIGHT, 0.0)
    last = Shape()
    for name, (shape, batches) in _shapes(quick=quick):
        if not quick:
            yield Progress(f"{name:<15} making a tree …")
        count, partitions = (batches // 10, 5) if quick else (batches, 200)
        tree, hollow = folder / "tree", max(0, count - _READ)
        whole = _sized(replace(shape, hollow=hollow), count, partitions)
        if shape.layout == last.layout:
            rewrite_logs(tree, whole)  # the state is the same
        else:
            shutil.rmtree(tree, ignore_errors=True)
            make(tree, whole)
        last = shape
        files = sum(len(names) for _, _, names in os.walk(tree))
        taken: dict[str, list[Spent]] = {each: [] for each in ("listing", *_LIGHT)}
        for _ in range(1 if quick else _ROUNDS):
            taken["listing"].append(_list(tree))
            for command, words in _LIGHT.items():
                one = _command(folder, words, tree)
                taken[command].append(Spent(one.seconds, one.cpu_seconds))
        best = {each: min(spent.cpu_seconds for spent in all_) for each, all_ in taken.items()}
        limit = 3 * best["listing"] + 0.5
        for command in _LIGHT:
            wall = min(spent.seconds for spent in taken[command])
            worst[command] = max(worst[command], best[command] / limit)
            yield (
                f"{name:<15} {files:,} files, listed in {best['listing']:.2f} s of CPU: {command} "
                f"{best[command]:.2f} s, {best[command] / limit:.2f} × what is allowed; "
                f"{wall:.2f} s by the clock"
            )
    shutil.rmtree(folder / "tree")
    for command, ratio in worst.items():
        text = f"CPU of {command}, every format, to 3 × a bare listing + 0.5 s"
        yield Ratio("checkpoint", text, 1, ratio)


def _against_size(folder: Path, *, quick: bool) -> Iterator[str]:
    """A tree four times as large must not take more than four times as long."""
    for name, (shape, _) in _shapes(quick=quick):
        found: dict[str, list[tuple[int, float]]] = {each: [] for each in _HEAVY}
        for partitions in (2, 4) if quick else (20, 80):
            tree = _build(folder / "tree", shape, 20 if quick else 40, partitions)
            files = sum(len(names) for _, _, names in os.walk(tree))
            for command, words in _HEAVY.items():
                found[command].append((files, _command(folder, words, tree).cpu_seconds))
            shutil.rmtree(tree)
        for command, ((few, fast), (many, slow)) in found.items():
            yield (
                f"{name:<15} {command}: {few:,} files {fast:.2f} s of CPU, {many:,} files "
                f"{slow:.2f} s: {1e6 * (slow - fast) / (many - few):.0f} µs a file, "
                f"{slow / fast:.2f} × for {many / few:.2f} × the files"
            )


def _requests(folder: Path, *, quick: bool) -> Iterator[str]:
    """What S3 is asked, by kind of request: a listing for each folder, nothing for each file."""
    from ebbtide.checkpoint import read_checkpoint
    from ebbtide.rewind import RewindRequest, plan_rewind
    from tests.servers import s3

    batches, partitions = (20, 2) if quick else (30, 5)
    with s3.serve() as store:
        os.environ.update(store.environment)
        for name, (shape, _) in _shapes(quick=quick):
            tree = _build(folder / "tree", shape, batches, partitions)
            url = store.upload(tree, f"{store.new_root()}/{tree.name}")
            folders = sum(bool(names) for _, _, names in os.walk(tree))
            files = sum(len(names) for _, _, names in os.walk(tree))
            with _counted() as asked:
                checkpoint = read_checkpoint(url)
                assert checkpoint.state_bytes
                assert checkpoint.oldest_restorable is not None
            inspected = _format(asked)
            with _counted() as asked:
                request = RewindRequest.parse(
                    url, "UTC", shift_by=-10, sink="none", assume_stopped=True
                )
                plan_rewind(request)
            yield (
                f"{name:<15} S3, {files:,} files in {folders} folders, {2 * batches} log files, "
                f"{_OPERATORS * partitions} stores: inspect {inspected}; plan {_format(asked)}"
            )
            shutil.rmtree(tree)


@contextmanager
def _counted() -> Iterator[Counter[str]]:
    """The requests that the client of S3 sends in a block, by their names."""
    from aiobotocore.client import AioBaseClient  # type: ignore[import-untyped]

    asked: Counter[str] = Counter()
    send = AioBaseClient._make_api_call

    async def count(self: Any, name: str, arguments: Any) -> Any:
        asked[name] += 1
        return await send(self, name, arguments)

    AioBaseClient._make_api_call = count
    try:
        yield asked
    finally:
        AioBaseClient._make_api_call = send


def _format(asked: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(asked.items()))


def _build(folder: Path, shape: Shape, batches: int, partitions: int) -> Path:
    return make(folder, _sized(shape, batches, partitions))


def _sized(shape: Shape, batches: int, partitions: int) -> Shape:
    return replace(
        shape,
        batches=batches,
        partitions=partitions,
        operators=_OPERATORS,
        snapshot_every=10,
    )


def _list(folder: Path) -> Spent:
    """A bare listing."""
    began, before = time.perf_counter(), time.process_time()
    for _ in os.walk(folder):
        pass
    return Spent(time.perf_counter() - began, time.process_time() - before)


def _command(folder: Path, words: Sequence[str], checkpoint: Path) -> Measurement:
    """A whole command, its start included."""
    options = ["-o", "json"] if "--yes" not in words else []
    if words[0] in ("rewind", "undo"):
        options.append("--assume-stopped")
    command = [sys.executable, "-m", "ebbtide", words[0], str(checkpoint), *words[1:], *options]
    # this machine may say otherwise, but an installed package is not compiled at each start
    return measure(command, log=folder / "command.log", env={"PYTHONDONTWRITEBYTECODE": ""})
