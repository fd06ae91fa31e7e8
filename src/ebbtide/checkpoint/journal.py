"""Read our notes about changes of a checkpoint: the unfinished one, backups, the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from shlex import quote
from typing import Any

from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path, parse_note, read_note
from ebbtide.storage import NOTES, Folder

BARRIER = "ebbtide: "
"""How the one line of a barrier begins: a log file that Spark refuses to read."""
BACKUPS = f"{NOTES}/backups"
AUDIT = "audit.jsonl"
JOURNAL = "change.json"
TIMELINE = "timeline.json"
BACKUP = "backup.json"
QUERY_IDS = "query-ids.json"

Timeline = tuple[tuple[str, int, str], ...]
"""Who wrote the batches from where on: (name, first batch, mode of the rewind to it), ascending."""
ORIGIN: Timeline = (("origin", 0, "replan"),)


@dataclass(frozen=True)
class Journal:
    """A change under way: what it is and how far it is."""

    action: str
    """`rewind` or `undo`."""
    backup: str
    """The backup that it makes."""
    restores: str | None
    """The backup that it brings back."""
    first_batch: int
    mode: str
    target: str
    """What was asked for, as typed."""
    barrier: int
    """The log id under which the barrier lies."""
    phase: str
    """Where it stands; what comes before is done."""
    after: str = ""
    """Once all is done: the digest of the logs, to tell whether the query has run on since."""

    def command(self, location: str) -> str:
        """The line that finishes it."""
        if self.action == "undo":
            return f"ebbtide undo {quote(location)} --yes"
        return f"{rewind_command(location, self.first_batch, self.mode)} --execute"

    def interrupted(self, location: str) -> CheckpointError:
        """It must be finished first."""
        what = f"{self.action} to batch {self.first_batch}"
        return CheckpointError(
            f"A {what} of {location} was interrupted.", f"Finish it: {self.command(location)}"
        )


@dataclass(frozen=True)
class SinkChange:
    """What a rewind or an undo does to the sink, and enough to take it back."""

    kind: str
    """`delta` or `files`."""
    path: str
    version: int | None = None
    """The table's version before."""
    to_version: int | None = None
    """The version that it goes back to; -1 if it loses all rows."""
    app: str | None = None
    """The name under which a foreachBatch function notes its batches in the table."""
    app_before: int | None = None
    app_after: int | None = None
    """The batch noted under it, before and after."""
    files: tuple[str, ...] = ()
    """What leaves the folder of a file sink, in order."""
    kept: tuple[str, ...] = ()
    """Entries of its log that stay and are copied: without them those that left say nothing."""


@dataclass(frozen=True)
class Backup:
    """What a rewind or an undo took away, and what putting it back needs."""

    id: str
    action: str
    made_at: str
    made_by: str
    query_id: str
    first_batch: int
    mode: str
    last_batch: int | None
    """The last committed batch when it was made."""
    timeline: Timeline
    """The timeline that lies in it."""
    taken: tuple[str, ...]
    """Files that left the checkpoint, in the order of leaving."""
    kept: tuple[str, ...]
    """Files that stayed, linked here because Spark may clean them up."""
    bytes: int
    fingerprint: str
    vanished: tuple[str, ...] = ()
    """Files that somebody else removed before they could be taken: something still ran."""
    appeared: tuple[str, ...] = ()
    """Files that somebody else wrote meanwhile, taken as well."""
    next_query_id: str | None = None
    """The id that the query had from then on, where that changed."""
    sink: SinkChange | None = None

    def fits(self, current: Timeline) -> bool:
        """Whether a checkpoint of this timeline can go back to it: the same up to the cut."""
        cut = (self.first_batch, self.mode)
        return below(self.timeline, *cut) == below(current, *cut)


def rewind_command(location: str, batch: int, mode: str) -> str:
    """The line that plans a rewind.

    >>> rewind_command("my checkpoints/c", 5, "replan")
    "ebbtide rewind 'my checkpoints/c' --to-batch 5 --replan"
    """
    replan = " --replan" if mode == "replan" else ""
    return f"ebbtide rewind {quote(location)} --to-batch {batch}{replan}"


def below(timeline: Timeline, batch: int, mode: str) -> Timeline:
    """The part of a timeline before a rewind; an exact one keeps the plan of its first batch.

    >>> below((("origin", 0, "replan"), ("a", 5, "replan"), ("b", 9, "exact")), 9, "exact")
    (('origin', 0, 'replan'), ('a', 5, 'replan'))
    >>> below((("origin", 0, "replan"), ("a", 5, "replan")), 5, "exact")
    (('origin', 0, 'replan'), ('a', 5, 'replan'))
    """
    cut = (batch, mode == "exact")
    return tuple(part for part in timeline if (part[1], part[2] == "exact") < cut)


def branch(timeline: Timeline, batch: int, mode: str, name: str) -> Timeline:
    """A timeline that is new from a rewind on."""
    return (*below(timeline, batch, mode), (name, batch, mode))


def read_journal(folder: Folder) -> Journal | None:
    """The change under way, if there is one."""
    return parse_note(folder, JOURNAL, lambda note: Journal(**note))


def read_timeline(folder: Folder) -> Timeline:
    """The timeline that the checkpoint is on."""
    return parse_note(folder, TIMELINE, lambda note: _timeline(note["timeline"])) or ORIGIN


def backup_path(id_: str, *parts: str) -> str:
    """A file of a backup, relative to the checkpoint.

    >>> backup_path("b1", "taken", "commits/5")
    '.ebbtide/backups/b1/taken/commits/5'
    """
    return "/".join((BACKUPS, id_, *parts))


def read_backup(folder: Folder, id_: str) -> Backup | None:
    """One backup; None if its description was never written."""
    return parse_note(folder, f"backups/{id_}/{BACKUP}", _backup)


def list_backups(folder: Folder) -> list[Backup]:
    """The backups of a checkpoint, oldest first; not one that is just being made or put back."""
    journal = read_journal(folder)
    busy = {journal.backup, journal.restores} if journal else set()
    found = (read_backup(folder, name) for name in folder.names(BACKUPS) if name not in busy)
    return [backup for backup in found if backup is not None]


def read_audit(folder: Folder) -> tuple[Mapping[str, Any], ...]:
    """What was done to a checkpoint, oldest first."""
    return tuple(parse_lines(folder.read(note_path(AUDIT)) or ""))


def parse_lines(text: str) -> Iterator[Mapping[str, Any]]:
    r"""The objects of a log, one a line; a line that was cut is left out.

    >>> list(parse_lines('{"at": 1}\n{"at"'))
    [{'at': 1}]
    """
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            if isinstance(found := json.loads(line), dict):
                yield found


def known_ids(folder: Folder, query_id: str) -> frozenset[str]:
    """All ids that a query has had, as our notes tell: a rewind may have given it a new one."""
    noted = (read_note(folder, QUERY_IDS) or {}).get("ids", [])
    # ids of a checkpoint that was begun anew since are not its own
    ids = {query_id, *noted} if query_id in noted else {query_id}
    for backup in reversed(list_backups(folder)):
        pair = {backup.query_id, backup.next_query_id or backup.query_id}
        ids |= pair if pair & ids else set()
    return frozenset(ids)


def _backup(note: Mapping[str, Any]) -> Backup:
    lists = {name: tuple(note[name]) for name in ("taken", "kept", "vanished", "appeared")}
    sink = note.get("sink")
    return Backup(
        **{
            **note,
            **lists,
            "timeline": _timeline(note["timeline"]),
            "sink": None if sink is None else read_sink_change(sink),
        }
    )


def read_sink_change(note: Mapping[str, Any]) -> SinkChange:
    """A change of the sink from its plain values."""
    return SinkChange(**{**note, "files": tuple(note["files"]), "kept": tuple(note["kept"])})


def _timeline(found: list[list[Any]]) -> Timeline:
    return tuple((str(name), int(first), str(mode)) for name, first, mode in found)
