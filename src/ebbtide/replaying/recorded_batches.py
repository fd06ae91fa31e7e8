"""A checkpoint in, the batches that it has once planned out: what exactly to run again.

After a rewind their log entries lie in its backup; otherwise in the checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from shlex import quote

from ebbtide.checkpoint import Backup, Timeline, log_files
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history import Entry, read_history, store
from ebbtide.storage import Folder


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
    recorded = _rewound(folder, Timeline.read(folder))
    if recorded is None:
        raise CheckpointError(
            f"There is nothing to replay in {folder.url}: it was not rewound.",
            f"Rewind it first: ebbtide rewind {quote(folder.url)} --to-batch B --execute. "
            "Or leave it as it is: add --to-scratch --from-batch B.",
        )
    if (batch := _planned_anew(folder, recorded)) is not None:
        raise CheckpointError(
            f"Batch {batch} of {folder.url} has been planned anew since the rewind: it does not "
            "end where it did.",
            f"Undo and rewind once more: ebbtide undo {quote(folder.url)}",
        )
    return _checked(folder, recorded)


def find_range(folder: Folder, first: int | None, last: int | None) -> Recorded:
    """The batches of a range that the checkpoint has planned, or that its last rewind took away."""
    rewound = _rewound(folder, Timeline.read(folder))
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
    entries = {**read_history(folder).of(Timeline.read(folder))}
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


def ran_again(folder: Folder, recorded: Recorded) -> Mapping[int, Entry]:
    """What these batches did when they ran again as they were planned, where the history has it."""
    since = read_history(folder).of(Timeline.read(folder))
    return _checked(folder, replace(recorded, entries=since)).entries


def _rewound(folder: Folder, timeline: Timeline) -> Recorded | None:
    """What the last rewind of a timeline took away.

    Where it had not run past an earlier rewind, what that one took away comes after it.
    """
    if (backup := _last_change(folder, timeline)) is None:
        return None
    found, earlier = _of_backup(folder, backup), _rewound(folder, backup.timeline)
    if earlier is None:
        return found
    last = max(found.offsets, default=backup.first_batch - 1)
    same = all(text == earlier.offsets.get(id_, text) for id_, text in found.offsets.items())
    if not same or earlier.first > last + 1:
        return found
    later = {id_: text for id_, text in earlier.offsets.items() if id_ > last}
    return Recorded({**found.offsets, **later}, {**earlier.entries, **found.entries})


def _last_change(folder: Folder, timeline: Timeline) -> Backup | None:
    """The backup that holds what the last part of a timeline took the place of."""
    last = timeline.parts[-1]
    cut = (last.first_batch, last.mode)
    found = [
        backup
        for backup in Backup.read_all(folder)
        if (backup.first_batch, backup.mode) == cut
        and _made_at(backup.timeline) < _made_at(timeline)  # an undo keeps what came later
        and backup.fits(timeline)
    ]
    return found[-1] if found else None


def _made_at(timeline: Timeline) -> str:
    """When the last part of a timeline began, as its name has it; nothing is older than the first.

    >>> _made_at(Timeline().branch(3, "exact", "fork-20250904T070000.000000Z"))
    '20250904T070000.000000Z'
    """
    return "" if timeline == Timeline() else timeline.name.removeprefix("fork-")


def _of_backup(folder: Folder, backup: Backup) -> Recorded:
    """What a backup holds; an exact rewind has left the plan of its first batch, and linked it."""
    paths = {path: backup.taken_path(path) for path in backup.taken}
    paths |= {path: backup.kept_path(path) for path in backup.kept}
    places = {
        int(id_): place
        for path, place in paths.items()
        if path.startswith("offsets/")
        and (id_ := path.removeprefix("offsets/")).isdigit()
        and int(id_) >= backup.first_batch
    }
    texts = folder.read_all(places[id_] for id_ in sorted(places))
    offsets = {id_: texts[places[id_]] for id_ in sorted(places) if places[id_] in texts}
    if missing := set(places) - set(offsets):
        raise CheckpointError(
            f"Backup {backup.id} is not complete: the plan of batch {min(missing)} is missing.",
            f"See: ebbtide backups {quote(folder.url)}",
        )
    entries = read_history(folder).of(backup.timeline)
    return Recorded(offsets, entries)


def _checked(folder: Folder, recorded: Recorded) -> Recorded:
    """Refuse what cannot be run batch by batch; keep the entries of these very plans alone."""
    gap = set(range(recorded.first, recorded.last + 1)) - set(recorded.offsets)
    if gap:
        raise CheckpointError(
            f"Batch {min(gap)} of {folder.url} has no offsets, so those after it cannot be "
            "replayed one by one.",
            "Queries that track their progress asynchronously leave batches out.",
        )
    plans = {
        batch: log_files.parse_offsets(text, f"{folder.url}/offsets/{batch}")
        for batch, text in recorded.offsets.items()
    }
    for batch, plan in plans.items():
        if plan.control is not None:
            raise CheckpointError(
                f"Batch {batch} of {folder.url} only changed the number of partitions, and Spark "
                "does not run it again.",
                "Replay the batches before or after it: --to-scratch --from-batch B --to-batch E.",
            )
    entries = {b: recorded.entries[b] for b in plans if b in recorded.entries}
    return replace(recorded, entries=store.of_plans(entries, plans))


def _planned_anew(folder: Folder, recorded: Recorded) -> int | None:
    """The first batch since the rewind that was not planned as it is recorded."""
    for batch in folder.ids("offsets"):
        if batch in recorded.offsets:
            found = folder.read("offsets", str(batch))
            if found is not None and found != recorded.offsets[batch]:
                return batch
    return None
