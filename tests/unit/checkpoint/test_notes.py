"""Our notes are read by the types of their fields; one that is damaged is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import Backup, Journal, Owner, SinkChange, Timeline, layout
from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path, write_note
from ebbtide.rewind.holders import Lease, read_lease
from ebbtide.rewind.journal import write_backup, write_journal, write_timeline
from ebbtide.storage import Folder, WritableFolder, open_writable

JOURNAL = Journal("rewind", "b1", None, 5, "exact", "--to-batch 5", 9, "5 sink")
SINK = {"kind": "files", "name": "out"}
TIMELINE = Timeline().branch(5, "exact", "b1")
BACKUP = Backup(
    *("b1", "rewind", "2026-01-05T10:00:00Z", "ann", "q1", 5, "exact", None, TIMELINE),
    taken=("commits/5",),
    kept=(),
    bytes=7,
    fingerprint="f",
    sinks=(SinkChange("files", "/out", files=("part-1",)), SinkChange("delta", "/table")),
    location="/data/c",
)


@pytest.fixture
def folder(tmp_path: Path) -> WritableFolder:
    """An empty one."""
    return open_writable(str(tmp_path))


def test_what_is_written_is_read(folder: WritableFolder) -> None:
    address = folder.address
    lease = Lease("here", ((1, 2.5), (3, 4.0)), 5.0, released=True, address=address)
    write_journal(folder, JOURNAL)
    write_timeline(folder, TIMELINE)
    write_backup(folder, BACKUP)
    write_note(folder, "lease.json", asdict(lease))
    write_note(folder, layout.OWNER, {"pipeline": "visits", "sink": SINK, "later": 1})
    assert Journal.read(folder) == JOURNAL
    assert Timeline.read(folder) == TIMELINE
    assert Backup.read(folder, "b1") == BACKUP
    assert read_lease(folder) == lease
    assert Owner.read(folder) == Owner("visits", sink=SINK)


def test_a_backup_of_an_earlier_version_has_one_sink(folder: WritableFolder) -> None:
    note = BACKUP.to_dict()
    del note["sinks"], note["location"]
    write_note(folder, Backup.note("b1"), note)
    assert Backup.read(folder, "b1") == replace(BACKUP, sinks=BACKUP.sinks[:1], location=None)
    write_note(folder, Backup.note("b1"), note | {"sink": None})
    assert Backup.read(folder, "b1") == replace(BACKUP, sinks=(), location=None)


@pytest.mark.parametrize(
    ("name", "note", "read"),
    [
        (layout.JOURNAL, asdict(JOURNAL) | {"first_batch": "5"}, Journal.read),
        (layout.JOURNAL, asdict(JOURNAL) | {"barrier": True}, Journal.read),
        (layout.JOURNAL, asdict(JOURNAL) | {"later": 1}, Journal.read),
        (layout.JOURNAL, {"action": "rewind"}, Journal.read),
        (layout.TIMELINE, {"timeline": [["origin", 0]]}, Timeline.read),
        (layout.TIMELINE, {"timeline": [["origin", "0", "exact"]]}, Timeline.read),
        (layout.OWNER, {"sink": "files"}, Owner.read),
        ("lease.json", {"host": "a", "processes": [[1]], "renewed": 1.0}, read_lease),
        (
            Backup.note("b1"),
            BACKUP.to_dict() | {"sinks": [{"kind": "files"}]},
            lambda folder: Backup.read(folder, "b1"),
        ),
        (
            Backup.note("b1"),
            BACKUP.to_dict() | {"taken": "commits/5"},
            lambda folder: Backup.read(folder, "b1"),
        ),
    ],
)
def test_a_damaged_note_is_refused_by_name(
    name: str, note: dict[str, Any], read: Callable[[Folder], object], folder: WritableFolder
) -> None:
    folder.write(note_path(name), json.dumps(note))
    with pytest.raises(CheckpointError, match="is damaged") as refusal:
        read(folder)
    assert note_path(name) in refusal.value.problem
