"""Faults that are planted into Ebbtide, to see that a campaign finds them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from ebbtide.checkpoint import Journal
from ebbtide.rewind import apply, backups, fork, holders, lease, steps
from ebbtide.storage import object_stores, writable


def _late_barrier() -> list[tuple[Any, str, Any]]:
    """The barrier is written after the first file has gone."""
    waiting: list[Callable[[], None]] = []
    move, barrier = writable.WritableFolder.move, vars(steps)["write_barrier"]

    def write_later(*arguments: Any) -> None:
        waiting.append(lambda: barrier(*arguments))

    def move_first(folder: Any, source: str, target: str) -> None:
        move(folder, source, target)
        if waiting and "/taken/" in target:
            waiting.pop()()

    return [
        (steps, "write_barrier", write_later),
        (writable.WritableFolder, "move", move_first),
    ]


def _unchecked_copy() -> list[tuple[Any, str, Any]]:
    """The original is removed while the store may not have finished its copy."""

    def copy(store: Any, source: str, target: str) -> None:
        store.filesystem.cp_file(source, target)

    return [(object_stores.AzureStore, "copy", copy)]


def _any_token() -> list[tuple[Any, str, Any]]:
    """A lease that is there counts as our own, whoever has created it."""
    create = lease._create

    def create_or_take(folder: Any, wanted: Any, *, assume_stopped: bool) -> bool:
        created = create(folder, wanted, assume_stopped=assume_stopped)
        return created or holders.read_numbered(folder, wanted.number) is not None

    return [(lease, "_create", create_or_take)]


def _no_guard() -> list[tuple[Any, str, Any]]:
    """Who was stalled does not look at the clock before the next change."""
    return [(lease.Claim, "require", lambda _: None)]


def _early_lift() -> list[tuple[Any, str, Any]]:
    """The barrier goes before what an undo brings back is there."""
    restore, lift = steps.CheckpointChange._restore, steps.CheckpointChange._lift_barrier

    def lift_first(change: Any, returning: Any, *, logs: bool) -> None:
        if logs and returning is not None:
            journal = Journal.read(change._folder)
            assert journal is not None
            lift(change, journal)
        restore(change, returning, logs=logs)

    return [(steps.CheckpointChange, "_restore", lift_first)]


def _lost_kept() -> list[tuple[Any, str, Any]]:
    """A backup lacks one of the files that it should hold."""
    describe = backups.describe_backup

    def forget_one(*arguments: Any, **options: Any) -> Any:
        backup = describe(*arguments, **options)
        return replace(backup, taken=backup.taken[1:])

    return [(apply, "describe_backup", forget_one)]


def _open_fork() -> list[tuple[Any, str, Any]]:
    """A fork has no barrier while it is made."""
    write = writable.WritableFolder.write

    def write_but_barriers(folder: Any, path: str, text: str) -> None:
        if not text.startswith("ebbtide: A fork "):
            write(folder, path, text)

    remove = writable.WritableFolder.remove

    def remove_if_there(folder: Any, path: str) -> None:
        if folder.exists(path):
            remove(folder, path)

    return [
        (writable.WritableFolder, "write", write_but_barriers),
        (writable.WritableFolder, "remove", remove_if_there),
    ]


def _mixed_fork() -> list[tuple[Any, str, Any]]:
    """A fork does not look whether its original was rewound while it was copied."""
    return [(fork, "_require_unchanged", lambda *_: None)]


def _unsynced() -> list[tuple[Any, str, Any]]:
    """No phase of a change waits until the disk keeps the names of the one before."""
    return [(writable.WritableFolder, "sync", lambda _: None)]


PLANTS: Mapping[str, Callable[[], list[tuple[Any, str, Any]]]] = {
    "late-barrier": _late_barrier,
    "unchecked-copy": _unchecked_copy,
    "any-token": _any_token,
    "no-guard": _no_guard,
    "early-lift": _early_lift,
    "lost-file": _lost_kept,
    "open-fork": _open_fork,
    "mixed-fork": _mixed_fork,
    "unsynced": _unsynced,
}


_in_place: list[tuple[Any, str, Any, Any]] = []


@contextmanager
def planted(name: str | None) -> Iterator[None]:
    """Have one of them in Ebbtide for a while."""
    for owner, attribute, value in PLANTS[name]() if name else ():
        _in_place.append((owner, attribute, getattr(owner, attribute), value))
        setattr(owner, attribute, value)
    try:
        yield
    finally:
        for owner, attribute, before, _ in _in_place:
            setattr(owner, attribute, before)
        _in_place.clear()


@contextmanager
def unplanted() -> Iterator[None]:
    """Ebbtide as it is, to prepare a run."""
    for owner, attribute, before, _ in _in_place:
        setattr(owner, attribute, before)
    try:
        yield
    finally:
        for owner, attribute, _, value in _in_place:
            setattr(owner, attribute, value)
