"""Read our notes about changes of a checkpoint: the unfinished one, backups, the audit log."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from shlex import quote
from typing import Any, NamedTuple

from ebbtide.checkpoint.layout import BACKUPS, BARRIER, JOURNAL, QUERY_IDS, REPLAN, Mode
from ebbtide.checkpoint.timeline import Timeline
from ebbtide.errors import CheckpointError
from ebbtide.notes import Count, Name, PathInside, decode, parse_note
from ebbtide.parsing import require_name
from ebbtide.storage import Folder

_BACKUP = "backup.json"
_TAKEN, _KEPT, _QUERY = "taken", "kept", "query"
"""The parts of a backup: what left the checkpoint, links to what stayed, and the query's id."""


class Barrier(NamedTuple):
    """The log entry of ours that keeps Spark from starting."""

    id: int
    line: str
    """What Spark prints."""
    backup: str | None = None
    """The backup that the change makes; earlier versions did not name it."""


@dataclass(frozen=True)
class Journal:
    """A change under way: what it is and how far it is."""

    action: str
    """`rewind` or `undo`."""
    backup: Name
    """The backup that it makes."""
    restores: Name | None
    """The backup that it brings back."""
    first_batch: Count
    mode: Mode
    target: str
    """What was asked for, as typed."""
    barrier: Count
    """The log id under which the barrier lies."""
    phase: str
    """Where it stands; what comes before is done."""
    flags: str = ""
    """What the command that finishes it also needs, to plan again: what becomes of the sink."""
    after: str = ""
    """Once all is done: the digest of the logs, to tell whether the query has run on since."""

    @classmethod
    def read(cls, folder: Folder) -> Journal | None:
        """The change in progress, if there is one; refuse a note that is damaged."""
        try:
            return parse_note(folder, JOURNAL, partial(decode, cls))
        except CheckpointError as error:
            step = "No change is under way: remove that file."
            if (barrier := cls.read_barrier(folder)) is not None:
                step = f"Finish it: {barrier.line.rpartition('Finish it: ')[2]}"
            raise CheckpointError(error.problem, step) from None

    @staticmethod
    def read_barrier(folder: Folder) -> Barrier | None:
        """The barrier, which lies above all log entries, if it is up."""
        for id_ in folder.ids("offsets")[-1:]:
            line, *rest = (folder.read(f"offsets/{id_}") or "").splitlines() or [""]
            if line.startswith(BARRIER):
                with suppress(ValueError):
                    return Barrier(id_, line, require_name(rest[0] if rest else ""))
                return Barrier(id_, line)
        return None

    def command(self, location: str) -> str:
        """The line that finishes it."""
        if self.action == "undo":
            return f"ebbtide undo {quote(location)} --yes"
        replan = " --replan" if self.mode == REPLAN else ""
        flags = f"{replan}{' ' if self.flags else ''}{self.flags}"
        return f"ebbtide rewind {quote(location)} --to-batch {self.first_batch}{flags} --execute"

    def interrupted(self, location: str) -> CheckpointError:
        """It must be finished first."""
        what = f"{'An' if self.action == 'undo' else 'A'} {self.action} to batch {self.first_batch}"
        return CheckpointError(
            f"{what} of {location} was interrupted.", f"Finish it: {self.command(location)}"
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
    files: tuple[PathInside, ...] = ()
    """What leaves the folder of a file sink, in order."""
    kept: tuple[PathInside, ...] = ()
    """Entries of its log that stay and are copied: without them those that left say nothing."""

    @property
    def is_empty(self) -> bool:
        """Whether the sink stays as it is."""
        versions = self.version == self.to_version and self.app_before == self.app_after
        return versions and not self.files


@dataclass(frozen=True)
class Backup:
    """What a rewind or an undo took away, and what putting it back needs."""

    id: Name
    action: str
    made_at: str
    made_by: str
    query_id: str
    first_batch: Count
    mode: Mode
    last_batch: int | None
    """The last committed batch when it was made."""
    timeline: Timeline
    """The timeline that lies in it."""
    taken: tuple[PathInside, ...]
    """Files that left the checkpoint, in the order of leaving."""
    kept: tuple[PathInside, ...]
    """Files that stayed, linked here because Spark may clean them up."""
    bytes: int
    fingerprint: str
    vanished: tuple[str, ...] = ()
    """Files that somebody else removed before they could be taken: something still ran."""
    appeared: tuple[str, ...] = ()
    """Files that somebody else wrote meanwhile, taken as well."""
    next_query_id: str | None = None
    """The id that the query had from then on, where that changed."""
    restores: Name | None = None
    """The backup that an undo brought back."""
    sinks: tuple[SinkChange, ...] = ()
    location: str | None = None
    """Where the checkpoint lay then: a copy of it has the same backups."""

    @classmethod
    def read(cls, folder: Folder, id_: str) -> Backup | None:
        """One backup; None if its description was never written."""

        def parse(note: dict[str, Any]) -> Backup:
            first = note.pop("sink", None)  # all that there was before a query could have several
            note.setdefault("sinks", [first] if first else [])
            backup = decode(cls, note | {"timeline": {"parts": note["timeline"]}})
            if backup.id != id_:
                raise ValueError(f"it names another backup, {backup.id}")
            return backup

        return parse_note(folder, cls.note(id_), parse)

    @classmethod
    def read_all(cls, folder: Folder) -> list[Backup]:
        """The backups of a checkpoint, oldest first; not one in the making or being restored."""
        journal = Journal.read(folder)
        busy = {journal.backup, journal.restores} if journal else set()
        backups = (cls.read(folder, name) for name in folder.names(BACKUPS) if name not in busy)
        return [backup for backup in backups if backup is not None]

    @classmethod
    def query_ids(cls, folder: Folder, query_id: str) -> frozenset[str]:
        """All ids that a query has had, as our notes tell: a rewind may have given it a new one."""
        noted = cls.noted_ids(folder)
        # ids of a query that ran on the same folder before are not its own
        ids = {query_id, *noted} if query_id in noted else {query_id}
        for backup in reversed(cls.read_all(folder)):
            pair = {backup.query_id, backup.next_query_id or backup.query_id}
            ids |= pair if pair & ids else set()
        return frozenset(ids)

    @staticmethod
    def noted_ids(folder: Folder) -> tuple[str, ...]:
        """The ids that we have noted for the query, oldest first; none if we changed none."""
        ids = parse_note(folder, QUERY_IDS, lambda note: decode(tuple[str, ...], note["ids"]))
        return ids or ()

    @staticmethod
    def note(id_: str) -> str:
        """The name of the note that describes a backup."""
        return f"backups/{id_}/{_BACKUP}"

    def to_dict(self) -> dict[str, Any]:
        """As the note holds it; `sink` is the first of the sinks."""
        plain = asdict(self)
        first = next(iter(plain["sinks"]), None)
        return plain | {"timeline": self.timeline.parts, "sink": first}

    @property
    def sink(self) -> SinkChange | None:
        """What it did to the first of the query's sinks; most queries have one."""
        return next(iter(self.sinks), None)

    def of_sink(self, change: SinkChange) -> Backup:
        """The backup as the connector of one sink must know it: with that one's change only."""
        place = (change.kind, change.path)
        return replace(self, sinks=tuple(c for c in self.sinks if (c.kind, c.path) == place))

    @property
    def place(self) -> str:
        """Its folder in the checkpoint."""
        return f"{BACKUPS}/{self.id}"

    def taken_path(self, path: str) -> str:
        """Where a file lies that left the checkpoint."""
        return f"{self.place}/{_TAKEN}/{path}"

    def kept_path(self, path: str) -> str:
        """Where the link to a file lies that stayed in the checkpoint."""
        return f"{self.place}/{_KEPT}/{path}"

    def query_path(self, path: str) -> str:
        """Where the file with the query's former id lies, and its checksum."""
        return f"{self.place}/{_QUERY}/{path}"

    def fits(self, current: Timeline) -> bool:
        """Whether a checkpoint of this timeline can go back to it: the same up to the cut."""
        cut = (self.first_batch, self.mode)
        return self.timeline.below(*cut) == current.below(*cut)
