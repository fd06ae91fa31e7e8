"""The power is cut before every change of a rewind and of an undo, on real stores.

`python -m tests.store_cuts STORE …` runs the campaign (`make store-cuts`) and counts the cuts.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from ebbtide.checkpoint import Backup, Journal
from ebbtide.rewind import RewindRequest, apply_rewind, finish_interrupted, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder, open_writable
from tests.power import PowerCutError, fragile
from tests.servers.store import Store
from tests.servers.stores import started_when_asked_for
from tests.trees import JOIN_STORES, Shape, make, snapshot

_AT_ONCE = 4
"""Cuts at once, each in a checkpoint of its own: most of the time is spent on requests."""
FIRST, AUDIT = 1, ".ebbtide/audit.jsonl"
SHAPES = {
    "stateless": Shape(batches=3),
    "hdfs": Shape("hdfs", batches=3, partitions=1),
    "rocksdb": Shape("rocksdb", batches=3, partitions=1),
    "changelog": Shape("changelog", batches=3, partitions=1),
    "v2": Shape("v2", batches=3, partitions=2),
    "join": Shape("hdfs", batches=3, partitions=1, stores=JOIN_STORES),
    "tws": Shape("v2-zips", 3, partitions=1, operator_metadata="v2", spark_checksums=True),
    "uncommitted": Shape("hdfs", batches=3, committed=2, partitions=1),
}
Contents = Mapping[str, bytes]
Change = Callable[[str, WritableFolder | None], object]


def rewind(url: str, on: WritableFolder | None = None) -> None:
    """As the command line does it: finish what was interrupted, or plan and apply."""
    if not finish_interrupted(url, "rewind", lambda _journal: True, folder=on):
        request = RewindRequest(url, ToBatch(FIRST), assume_stopped=True, remedy="none")
        apply_rewind(plan_rewind(request), assume_stopped=True, folder=on)


def undo(url: str, on: WritableFolder | None = None) -> None:
    """As the command line does it, which also finishes one that was interrupted."""
    undo_rewind(url, assume_stopped=True, folder=on)


def make_shape(name: str, seed: str = "old", batches: int = 3) -> Contents:
    """The files of a checkpoint; only a disk has Hadoop's checksums."""
    shape = replace(SHAPES[name], seed=seed, batches=batches, hadoop_checksums=False)
    with tempfile.TemporaryDirectory() as folder:
        return snapshot(make(Path(folder), shape))


def cut_shape(store: Store, name: str, every: int = 1) -> int:
    """Cut a rewind and an undo of one shape before every n-th change; returns how many cuts."""
    base = make_shape(name)
    cuts = cut_everywhere(store, base, rewind, every)
    url = store.write(f"{store.new_root()}/c", base)
    rewind(url)
    # the query ran on: another timeline from the first batch on, under the same names
    other = make_shape(name, seed="new", batches=2)
    rewound = {**other, **store.everything(url)}
    return cuts + cut_everywhere(store, rewound, undo, every)


def cut_everywhere(store: Store, base: Contents, change: Change, every: int) -> int:
    """Cut the power before changes; what is left must be safe, and finish when run again."""
    root = store.new_root()
    whole = store.write(f"{root}/whole", base)
    counted = fragile(whole, 1 << 60)
    change(whole, counted)
    steps, after = (1 << 60) - counted.left[0], store.everything(whole)
    assert steps > 10

    def cut(n: int) -> None:
        url = store.write(f"{root}/{n}", base)
        try:
            change(url, fragile(url, n))
        except PowerCutError:
            check_cut(store, url, (base, after), partial(change, url, None), n)
        else:
            raise AssertionError(f"the power was not cut before change {n}")

    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return len(list(pool.map(cut, range(0, steps, every))))


def check_cut(
    store: Store, url: str, trees: tuple[Contents, Contents], finish: Callable[[], object], n: int
) -> None:
    """Spark would start only on the one tree or the other; nothing is lost; it can be finished."""
    before, after = trees
    left = store.everything(url)
    if (line := barrier(left)) is None:
        assert of_spark(left) in (of_spark(before), of_spark(after)), n
    else:
        assert "Finish it: ebbtide" in line, n
    lost = set(of_spark(before).values()) - set(left.values())
    assert not lost, f"{len(lost)} files are lost when cut before change {n}"
    opened = open_writable(url)
    if of_spark(left) != of_spark(after) or Journal.read(opened) is not None:
        finish()
    done = store.everything(url)
    assert of_spark(done) == of_spark(after), n
    assert Journal.read(opened) is None, n
    assert done[AUDIT].count(b"\n") == after[AUDIT].count(b"\n"), n
    backups = [sum(path.endswith("/backup.json") for path in tree) for tree in (done, after)]
    assert backups[0] == backups[1] == len(Backup.read_all(opened)), n


def of_spark(contents: Contents) -> dict[str, bytes]:
    """Every file but our own notes, and but for the query's id, which each rewind makes anew."""
    return {path: c for path, c in contents.items() if not path.startswith(".ebbtide/")}


def barrier(contents: Contents) -> str | None:
    """The barrier's line, if it is up: it lies above every other entry."""
    names = (path.removeprefix("offsets/") for path in contents if path.startswith("offsets/"))
    newest = max((int(name) for name in names if name.isdigit()), default=None)
    line = contents.get(f"offsets/{newest}", b"").decode()
    return line if line.startswith("ebbtide: ") else None


def main(*kinds: str) -> None:
    """The campaign: every shape, every cut."""
    with started_when_asked_for() as stores:
        for kind in kinds or ("s3", "hdfs"):
            store, cuts, begun = stores(kind), 0, time.monotonic()
            os.environ.update(store.environment)
            for name in SHAPES:
                cuts += cut_shape(store, name)
                seconds = time.monotonic() - begun
                print(f"{kind}: {cuts} cuts, {name} done after {seconds:.0f} s", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
