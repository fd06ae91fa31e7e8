"""What must hold, looked at after every single change of a file.

Only the owner of a checkpoint changes it. Spark's files change behind the barrier only, and when it
goes, the tree is the one before or the one after. Nothing here asks Ebbtide's own code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from tests.simulation.world import Process, World

NOTES = ".ebbtide/"
_FREE = (f"{NOTES}leases/", f"{NOTES}tmp/")
"""Who takes a checkpoint is not its owner yet."""
_VERSION = re.compile(r"\.?(\d+)[._]")
Contents = Mapping[str, bytes]


def rewound(tree: Contents, batch: int, mode: str) -> dict[str, bytes]:
    """What stays of a tree in a rewind."""
    return {path: content for path, content in tree.items() if not _goes(path, batch, mode)}


def _goes(path: str, batch: int, mode: str) -> bool:
    top, _, rest = path.partition("/")
    name = rest.rpartition("/")[2]
    if top in ("offsets", "commits") and name.isdigit():
        first = batch if top == "commits" or mode == "replan" else batch + 1
        return int(name) >= first
    if top == "state" and "_metadata" not in path and "SSTs" not in path:
        version = _VERSION.match(name)
        return version is not None and int(version[1]) > batch
    return False


def is_barrier(content: bytes | None) -> bool:
    """Whether Spark fails on a log entry, as it should."""
    return content is not None and content.startswith(b"ebbtide: ")


@dataclass
class Model:
    """What is known of one checkpoint."""

    world: World
    root: str
    tree: dict[str, bytes] = field(default_factory=dict)
    """Spark's files."""
    barrier: str | None = None
    before: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """By backup: the tree when it was begun."""
    settled: list[dict[str, bytes]] = field(default_factory=list)
    """The trees on which Spark could start, oldest first."""
    notes: dict[str, bytes] = field(default_factory=dict)
    owners: list[tuple[Process, str, Any]] = field(default_factory=list)
    superseded: set[Process] = field(default_factory=set)
    writers: set[str] = field(default_factory=set)
    watched: bool = True
    pruned: bool = False

    def reset(self, files: Contents) -> None:
        """Begin with what is there."""
        inside = {
            path.removeprefix(f"{self.root}/"): content
            for path, content in files.items()
            if path.startswith(f"{self.root}/")
        }
        self.notes = {p: c for p, c in inside.items() if p.startswith(NOTES)}
        self.tree = {p: c for p, c in inside.items() if not p.startswith(NOTES)}
        logs = [int(p[8:]) for p in self.tree if p.startswith("offsets/") and p[8:].isdigit()]
        top = f"offsets/{max(logs, default=0)}"
        self.barrier = top if is_barrier(self.tree.get(top)) else None

    def settle(self) -> None:
        """Spark could start now."""
        if self.barrier is None and self.tree not in self.settled:
            self.settled.append(dict(self.tree))

    def changed(self, path: str, content: bytes | None) -> None:
        """A file was written, or has gone."""
        if not path.startswith(f"{self.root}/"):
            return
        path = path[len(self.root) + 1 :]
        tree = self.notes if path.startswith(NOTES) else self.tree
        old = tree.get(path)
        if content is None:
            tree.pop(path, None)
        else:
            tree[path] = content
        # a copy that the store finishes by itself is nobody's change
        if self.watched and content != old and old != b"" and not path.startswith(_FREE):
            self._judge(path, old, content)

    def _judge(self, path: str, old: bytes | None, content: bytes | None) -> None:
        process = self.world.task.process
        self._require_owner(process, path)
        if path.startswith(NOTES):
            return
        if process.name in self.writers:
            if self.barrier:
                self._fail(f"{process.name} has written {path} behind the barrier")
            self.settle()
            return
        if is_barrier(content):
            self._raise_barrier(path)
        elif path == self.barrier:
            self.barrier = None
            self._check_lifted(old)
            self.settle()
        elif self.barrier is None:
            self._fail(f"{path} was changed without a barrier")

    def _require_owner(self, process: Process, path: str) -> None:
        if not any(owner is process for owner, _, _ in self.owners):
            self._fail(f"{process.name} changes {path}, but has no lease")
        elif process in self.superseded:
            self._fail(f"{process.name} changes {path}, which another has taken over")

    def _raise_barrier(self, path: str) -> None:
        above = [p for p in self.tree if p.startswith("offsets/") and p[8:].isdigit()]
        if max(above, key=lambda p: int(p[8:])) != path:
            self._fail(f"the barrier {path} does not lie above all entries")
        self.barrier = path
        tree = {p: c for p, c in self.tree.items() if p != path}
        self.before.setdefault(self._backup_of(self.tree[path]), tree)

    def _backup_of(self, barrier: bytes) -> str:
        return barrier.decode().splitlines()[1]

    def _check_lifted(self, barrier: bytes | None) -> None:
        assert barrier is not None
        id_ = self._backup_of(barrier)
        if self.tree not in (before := self.before[id_], self.expected(id_)):
            lost = sorted(before.keys() - self.tree.keys())
            new = sorted(p for p, c in self.tree.items() if before.get(p) != c)
            self._fail(f"the barrier of {id_} has gone, but {lost} are gone and {new} are new")

    def expected(self, id_: str) -> dict[str, bytes] | None:
        """The tree after a change, by the backup that it makes."""
        note = self.notes.get(f"{NOTES}backups/{id_}/backup.json")
        if note is None:  # it was taken back
            return None
        backup = json.loads(note)
        batch, mode = backup["first_batch"], backup["mode"]
        after = rewound(self.before[id_], batch, mode)
        if (restores := backup["restores"]) is None:
            return after
        there = self.before[restores]
        stays = rewound(there, batch, mode)
        return after | {path: c for path, c in there.items() if path not in stays}

    @contextmanager
    def holding(self, purpose: str, claim: Any) -> Iterator[None]:
        """The current process has been given a lease."""
        process = self.world.task.process
        for owner, held, other in self.owners:
            if owner is process or owner.dead or owner in self.superseded:
                continue
            is_beside = {purpose, held} == {"run", "prune"}
            if is_beside:
                continue
            if self._is_live(owner, other):
                self._fail(f"{owner.name} and {process.name} both have the checkpoint")
            self.superseded.add(owner)
        entry = (process, purpose, claim)
        self.world.say(f"+++ {process.name} has the lease")
        self.owners.append(entry)
        self.superseded.discard(process)
        try:
            yield
        finally:
            self.world.say(f"+++ {process.name} gives it back")
            self.owners.remove(entry)

    def _is_live(self, owner: Process, claim: Any) -> bool:
        # as it counts itself
        elapsed = self.world.now + owner.skew - claim._confirmed
        return claim._lost is None and elapsed < 50 and owner.stalled_until - self.world.now < 60

    def everything(self) -> set[bytes]:
        """All contents, wherever they lie."""
        return {*self.tree.values(), *self.notes.values()}

    def _fail(self, problem: str) -> None:
        self.world.fail(problem)
