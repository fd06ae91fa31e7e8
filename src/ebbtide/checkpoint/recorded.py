"""A checkpoint in, the batches that it has once planned out: what exactly to run again.

After a rewind their log entries lie in its backup; otherwise in the checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote

from ebbtide.checkpoint.backups import KEPT, TAKEN
from ebbtide.checkpoint.folder import Folder
from ebbtide.checkpoint.history import Entry, read_history
from ebbtide.checkpoint.journal import Backup, backup_path, list_backups, read_timeline
from ebbtide.checkpoint.logs import parse_offsets
from ebbtide.errors import CheckpointError, UsageError


@dataclass(frozen=True)
class Recorded:
    """Batches as they were planned, and what they did then."""

    offsets: Mapping[int, str]
    """Their entries in the offset log, word for word, ascending."""
    entries: Mapping[int, Entry]
    """Their first run, where the history has it."""

    @property
    def first(self) -> int:
        """The first of them."""
        return min(self.offsets)

    @property
    def last(self) -> int:
        """The last of them."""
        return max(self.offsets)


def find_rewound(folder: Folder) -> Recorded:
    """The batches that the last rewind took away; refuse if there are none, or if all is new."""
    backup = _last_change(folder)
    if backup is None:
        raise CheckpointError(
            f"There is nothing to replay in {folder.url}: it was not rewound.",
            f"Rewind it first: ebbtide rewind {quote(folder.url)} --to-batch B --execute. "
            "Or leave it as it is: add --to-scratch --from-batch B.",
        )
    recorded = _of_backup(folder, backup)
    if (batch := _planned_anew(folder, recorded)) is not None:
        raise CheckpointError(
            f"Batch {batch} of {folder.url} has been planned anew since the rewind: it does not "
            "end where it did.",
            f"Undo and rewind once more: ebbtide undo {quote(folder.url)}",
        )
    return recorded


def find_range(folder: Folder, first: int | None, last: int | None) -> Recorded:
    """The batches of a range that the checkpoint has planned, or that its last rewind took away."""
    backup = _last_change(folder)
    rewound = None if backup is None else _of_backup(folder, backup)
    if rewound is not None and _planned_anew(folder, rewound) is not None:
        rewound = None
    if first is None:
        if rewound is None:
            raise UsageError(
                f"Say from which batch: {folder.url} was not rewound.", "Add --from-batch B."
            )
        first = rewound.first
    ids = folder.ids("offsets")
    found = {id_: text for id_ in ids if (text := folder.read("offsets", str(id_))) is not None}
    entries = {**read_history(folder).of(read_timeline(folder))}
    if rewound is not None:
        found, entries = {**found, **rewound.offsets}, {**entries, **rewound.entries}
    end = max(found, default=-1) if last is None else last
    if last is not None and last < first:
        raise UsageError(f"--to-batch {last} lies before batch {first}.", "Turn them round.")
    chosen = {id_: found[id_] for id_ in sorted(found) if first <= id_ <= end}
    if first not in chosen or end not in chosen:
        there = f"It has {min(found)} to {max(found)}." if found else "It has none."
        which = first if first not in found else end
        raise CheckpointError(f"{folder.url} has no batch {which} to replay.", there)
    return _checked(folder, Recorded(chosen, entries))


def put_back(folder: Folder, recorded: Recorded, batch: int) -> None:
    """Have a batch run next as it was planned: the entry of it that Spark finds at its start."""
    if not folder.exists(f"offsets/{batch}"):
        folder.write(f"offsets/{batch}", recorded.offsets[batch])


def _last_change(folder: Folder) -> Backup | None:
    """The backup that holds what the checkpoint's own timeline took the place of."""
    timeline = read_timeline(folder)
    cut = timeline[-1][1:]
    found = [
        backup
        for backup in list_backups(folder)
        if (backup.first_batch, backup.mode) == cut
        and backup.timeline != timeline
        and backup.fits(timeline)
    ]
    return found[-1] if found else None


def _of_backup(folder: Folder, backup: Backup) -> Recorded:
    """What a backup holds; an exact rewind has left the plan of its first batch, and linked it."""
    parts = {path: part for part in (TAKEN, KEPT) for path in getattr(backup, part)}
    ids = [path.removeprefix("offsets/") for path in parts if path.startswith("offsets/")]
    places = {
        int(id_): backup_path(backup.id, parts[f"offsets/{id_}"], f"offsets/{id_}")
        for id_ in ids
        if id_.isdigit() and int(id_) >= backup.first_batch
    }
    texts = folder.read_all(places[id_] for id_ in sorted(places))
    offsets = {id_: texts[places[id_]] for id_ in sorted(places) if places[id_] in texts}
    if missing := set(places) - set(offsets):
        raise CheckpointError(
            f"Backup {backup.id} is not whole: the plan of batch {min(missing)} is missing.",
            f"See: ebbtide backups {quote(folder.url)}",
        )
    entries = read_history(folder).of(backup.timeline)
    return _checked(folder, Recorded(offsets, entries))


def _checked(folder: Folder, recorded: Recorded) -> Recorded:
    """Refuse what cannot be run batch by batch; keep the entries of these batches alone."""
    gap = set(range(recorded.first, recorded.last + 1)) - set(recorded.offsets)
    if gap:
        raise CheckpointError(
            f"Batch {min(gap)} of {folder.url} has no offsets, so those after it cannot be "
            "replayed one by one.",
            "Queries that track their progress asynchronously leave batches out.",
        )
    for batch, text in recorded.offsets.items():
        if parse_offsets(text, f"{folder.url}/offsets/{batch}").control is not None:
            raise CheckpointError(
                f"Batch {batch} of {folder.url} only changed the number of partitions, and Spark "
                "does not run it again.",
                "Replay the batches before or after it: --to-scratch --from-batch B --to-batch E.",
            )
    entries = {b: recorded.entries[b] for b in recorded.offsets if b in recorded.entries}
    return replace(recorded, entries=entries)


def _planned_anew(folder: Folder, recorded: Recorded) -> int | None:
    """The first batch since the rewind that was not planned as it is recorded."""
    for batch in folder.ids("offsets"):
        if batch in recorded.offsets:
            found = folder.read("offsets", str(batch))
            if found is not None and found != recorded.offsets[batch]:
                return batch
    return None
