"""Find the recorded batches to run again.

After a rewind their log entries are in its backup, otherwise in the checkpoint itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from shlex import quote

from ebbtide.checkpoint import Backup, Timeline, log_files
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.history import Entry, read_history, store
from ebbtide.parsing import parse_id
from ebbtide.storage import Folder


@dataclass(frozen=True)
class Recorded:
    """Batches as they were planned, and their first runs."""

    offsets: Mapping[int, str]
    """Their entries in the offset log, unchanged and ascending."""
    entries: Mapping[int, Entry]
    """Their first runs, as far as the history has them."""

    @property
    def first(self) -> int:
        """The first of them."""
        return min(self.offsets)

    @property
    def last(self) -> int:
        """The last of them."""
        return max(self.offsets)


def find_rewound(folder: Folder) -> Recorded:
    """The batches that the last rewind removed; refused if there are none or they have changed."""
    recorded = _rewound(folder, Timeline.read(folder))
    if recorded is None:
        raise CheckpointError(
            f"There is nothing to replay in {folder.url}: it was not rewound.",
            f"Rewind it first: ebbtide rewind {quote(folder.url)} --to-batch B --execute. "
            "Or leave it as it is: add --to-scratch --from-batch B.",
        )
    if (batch := _find_replanned(folder, recorded)) is not None:
        raise CheckpointError(
            f"Batch {batch} of {folder.url} has been planned again since the rewind: it does not "
            "end where it did.",
            f"Undo and rewind once more: ebbtide undo {quote(folder.url)}",
        )
    return _checked(folder, recorded)


def find_range(folder: Folder, first: int | None, last: int | None) -> Recorded:
    """The batches of a range that the checkpoint has planned, or that its last rewind removed."""
    timeline = Timeline.read(folder)
    rewound = _rewound(folder, timeline)
    if rewound is not None and _find_replanned(folder, rewound) is not None:
        rewound = None
    if first is None:
        if rewound is None:
            raise UsageError(
                f"Say from which batch: {folder.url} was not rewound.", "Add --from-batch B."
            )
        first = rewound.first
    if last is not None and last < first:
        raise UsageError(f"--to-batch {last} is before batch {first}.", "Swap them.")
    offsets = _read_offsets(folder, folder.ids("offsets"))
    entries = {**read_history(folder).of(timeline)}
    if rewound is not None:
        offsets, entries = {**offsets, **rewound.offsets}, {**entries, **rewound.entries}
    end = max(offsets, default=-1) if last is None else last
    for batch in (first, end):
        if batch not in offsets:
            held = f"It has {min(offsets)} to {max(offsets)}." if offsets else "It has none."
            raise CheckpointError(f"{folder.url} has no batch {batch} to replay.", held)
    chosen = {id_: offsets[id_] for id_ in sorted(offsets) if first <= id_ <= end}
    return _checked(folder, Recorded(chosen, entries))


def ran_again(folder: Folder, recorded: Recorded) -> Mapping[int, Entry]:
    """The second runs of these batches as they were planned, as far as the history has them."""
    since = read_history(folder).of(Timeline.read(folder))
    return _checked(folder, replace(recorded, entries=since)).entries


def _rewound(folder: Folder, timeline: Timeline) -> Recorded | None:
    """The batches that the last rewind of a timeline removed.

    If the timeline had not passed the batches of an earlier rewind, those follow.
    """
    if (backup := _last_change(folder, timeline)) is None:
        return None
    removed, earlier = _of_backup(folder, backup), _rewound(folder, backup.timeline)
    if earlier is None:
        return removed
    last = max(removed.offsets, default=backup.first_batch - 1)
    same = all(text == earlier.offsets.get(id_, text) for id_, text in removed.offsets.items())
    if not same or earlier.first > last + 1:
        return removed
    later = {id_: text for id_, text in earlier.offsets.items() if id_ > last}
    return Recorded({**removed.offsets, **later}, {**earlier.entries, **removed.entries})


def _last_change(folder: Folder, timeline: Timeline) -> Backup | None:
    """The backup of what the last part of a timeline replaced."""
    last = timeline.parts[-1]
    backups = [
        backup
        for backup in Backup.read_all(folder)
        if (backup.first_batch, backup.mode) == (last.first_batch, last.mode)
        and _made_at(backup.timeline) < _made_at(timeline)  # an undo keeps what came later
        and backup.fits(timeline)
    ]
    return backups[-1] if backups else None


def _made_at(timeline: Timeline) -> str:
    """The time at which the last part of a timeline began, from its name; the first is oldest.

    >>> _made_at(Timeline().branch(3, "exact", "fork-20250904T070000.000000Z"))
    '20250904T070000.000000Z'
    """
    return "" if timeline == Timeline() else timeline.name.removeprefix("fork-")


def _of_backup(folder: Folder, backup: Backup) -> Recorded:
    """The batches of a backup; an exact rewind keeps the plan of its first batch and links it."""
    paths = {path: backup.taken_path(path) for path in backup.taken}
    paths |= {path: backup.kept_path(path) for path in backup.kept}
    plans = {
        id_: paths[path]
        for path in paths
        if path.startswith("offsets/")
        and (id_ := parse_id(path.removeprefix("offsets/"))) is not None
        and id_ >= backup.first_batch
    }
    texts = folder.read_all(plans.values())
    offsets = {id_: texts[plans[id_]] for id_ in sorted(plans) if plans[id_] in texts}
    if missing := set(plans) - set(offsets):
        raise CheckpointError(
            f"Backup {backup.id} is not complete: the plan of batch {min(missing)} is missing.",
            f"See: ebbtide backups {quote(folder.url)}",
        )
    return Recorded(offsets, read_history(folder).of(backup.timeline))


def _checked(folder: Folder, recorded: Recorded) -> Recorded:
    """Refuse what cannot be run batch by batch; keep only the entries of these plans."""
    gap = next((id_ + 1 for id_ in recorded.offsets if id_ + 1 not in recorded.offsets), None)
    if gap is not None and gap <= recorded.last:
        raise CheckpointError(
            f"Batch {gap} of {folder.url} has no offsets, so those after it cannot be "
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


def _find_replanned(folder: Folder, recorded: Recorded) -> int | None:
    """The first batch since the rewind whose plan is not the recorded one."""
    plans = _read_offsets(folder, [id_ for id_ in folder.ids("offsets") if id_ in recorded.offsets])
    return next((id_ for id_, text in plans.items() if text != recorded.offsets[id_]), None)


def _read_offsets(folder: Folder, ids: Iterable[int]) -> dict[int, str]:
    paths = {f"offsets/{id_}": id_ for id_ in ids}
    return {paths[path]: text for path, text in folder.read_all(paths).items()}
