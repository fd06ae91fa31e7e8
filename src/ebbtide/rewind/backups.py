"""Choose the backup to go back to, describe what the next one must hold, remove old ones."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime, timedelta, timezone
from shlex import quote

from ebbtide.checkpoint import Backup, Checkpoint, Journal, SinkChange, Timeline, layout, read_logs
from ebbtide.connectors import connector_of
from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path
from ebbtide.processes import whoami
from ebbtide.rewind import checks
from ebbtide.rewind.holders import CHANGE
from ebbtide.rewind.journal import write_audit
from ebbtide.rewind.lease import hold_lease
from ebbtide.rewind.plan import list_removals, take_fingerprint
from ebbtide.rewind.sinks import KnownSinks, check_own_sinks
from ebbtide.storage import Folder, open_folder, open_writable
from ebbtide.times import in_utc

LOGS = ("commits/", "offsets/")
_STAMP = "%Y%m%dT%H%M%S.%fZ"
METADATA = ("metadata", ".metadata.crc")
"""Where Spark keeps the query's id, and the checksum of that."""


def find_backup(location: str, backup_id: str | None = None, *, with_sink: bool = False) -> Backup:
    """The backup to go back to, the newest by default; refuse one of another timeline.

    With `with_sink`, also refuse one that would bring back the sink of another checkpoint.
    """
    folder = open_folder(location)
    query_id = read_logs(folder).query_id
    by_id = {backup.id: backup for backup in Backup.read_all(folder)}
    if not by_id:
        raise CheckpointError(
            f"{folder.url} has no backup: nothing was rewound, or the backups were pruned.",
            "There is nothing to undo.",
        )
    backup = by_id.get(backup_id or max(by_id))
    if backup is None:
        raise CheckpointError(
            f"{folder.url} has no backup {backup_id}.", f"There are: {', '.join(by_id)}."
        )
    if not backup.fits(Timeline.read(folder)):
        raise CheckpointError(
            f"Backup {backup.id} belongs to another timeline: the batches before "
            f"{backup.first_batch} have changed since.",
            f"Undo the later changes first. See: ebbtide backups {quote(folder.url)}",
        )
    ids = Backup.query_ids(folder, query_id)
    if backup.query_id not in ids or not _same_below(folder, backup):
        raise CheckpointError(
            f"Backup {backup.id} is of another query: the checkpoint was created again since.",
            "It cannot come back here.",
        )
    if with_sink and (check := check_own_sinks(folder, backup)) is not None:
        checks.require(check, f"{folder.url} is left as it is")
    return backup


def _same_below(folder: Folder, backup: Backup) -> bool:
    """Whether the log entries before the cut that are still there are those of the backup."""
    return all(
        folder.read(path) in (None, folder.read(backup.kept_path(path)))
        for log in LOGS
        if (path := f"{log}{backup.first_batch - 1}") in backup.kept
    )


def select_backups(
    backups: list[Backup], *, older_than: timedelta | None = None, keep: int | None = None
) -> list[Backup]:
    """Those that are old enough and not among the newest `keep`."""
    rest = backups[: max(0, len(backups) - (keep or 0))]
    if older_than is None:
        return list(rest)
    limit = in_utc(datetime.now(timezone.utc) - older_than)
    return [backup for backup in rest if backup.made_at < limit]


def prune_backups(
    location: str,
    *,
    older_than: timedelta | None = None,
    keep: int | None = None,
    dry_run: bool = False,
    assume_stopped: bool = False,
) -> list[Backup]:
    """Remove backups for good that are old enough and not among the newest; returns them."""
    folder = open_writable(location)
    if dry_run:
        return select_backups(Backup.read_all(folder), older_than=older_than, keep=keep)
    with hold_lease(folder, CHANGE, beside_run=True, assume_stopped=assume_stopped) as claimed:
        folder = claimed.writable
        own = KnownSinks.read(folder)
        pruned = select_backups(Backup.read_all(folder), older_than=older_than, keep=keep)
        for backup in pruned:
            claimed.check()
            folder.remove_tree(backup.place)
            # what a copy of a checkpoint has of its original's sink is not its own
            for change in backup.sinks if own.owns(folder, backup) else ():
                connector_of(change.kind).sink.delete_quarantined(folder, change, backup)
            write_audit(folder, "prune", backup)
        if Journal.read(folder) is None:
            # what is left of one whose removal was interrupted
            for name in folder.names(layout.BACKUPS):
                if not folder.exists(note_path(Backup.note(name))):
                    folder.remove_tree(f"{layout.BACKUPS}/{name}")
    return pruned


def require_whole(folder: Folder, backup: Backup) -> None:
    """Refuse a backup that lacks a file before anything is put back from it."""
    paths = [backup.taken_path(path) for path in backup.taken]
    paths += [backup.kept_path(path) for path in backup.kept]
    for path, exists in zip(paths, folder.map(folder.exists, paths), strict=True):
        if not exists:
            raise CheckpointError(
                f"Backup {backup.id} is not complete: {path} is missing.",
                f"See: ebbtide backups {quote(folder.url)}",
            )
    for change in backup.sinks:
        sink = connector_of(change.kind).sink
        if (gone := sink.find_missing(folder, change, backup)) is None:
            continue
        raise CheckpointError(
            f"Backup {backup.id} is not complete: {gone} is missing in {change.path}.",
            "To undo the rewind of the checkpoint alone, add --leave-sink.",
        )


def describe_backup(
    checkpoint: Checkpoint,
    action: str,
    batch: int,
    mode: str,
    returning: Backup | None = None,
    *,
    next_query_id: str | None = None,
    sinks: tuple[SinkChange, ...] = (),
) -> Backup:
    """What a change of the checkpoint will take away and link; nothing is done yet."""
    removals = list_removals(checkpoint, batch, replan=mode == layout.REPLAN)
    # whatever is in the way of a file that comes back
    coming = returning.taken if returning else ()
    removals += [path for path in set(coming) - set(removals) if checkpoint.has(path)]
    kept = _list_kept(checkpoint, batch, removals)
    now = datetime.now(timezone.utc)
    latest = checkpoint.logs.latest_committed
    return Backup(
        id=f"{_next_stamp(checkpoint.folder, now)}-{action}-to-{batch}",
        action=action,
        made_at=in_utc(now),
        made_by=whoami(),
        query_id=checkpoint.logs.query_id,
        first_batch=batch,
        mode=mode,
        last_batch=latest.id if latest else None,
        timeline=Timeline.read(checkpoint.folder),
        taken=tuple(removals),
        kept=tuple(kept),
        bytes=sum(checkpoint.size(path) for path in (*removals, *kept)),
        fingerprint=take_fingerprint(checkpoint, batch, removals),
        next_query_id=next_query_id,
        restores=returning.id if returning else None,
        sinks=sinks,
        location=checkpoint.folder.address,
    )


def _next_stamp(folder: Folder, now: datetime) -> str:
    """A time for the id of a backup, later than all others: the newest is found by its id."""
    stamp, newest = f"{now:{_STAMP}}", max(folder.names(layout.BACKUPS), default="")
    if stamp > newest:
        return stamp
    with suppress(ValueError):  # the clock was set back
        later = datetime.strptime(newest.partition("-")[0], _STAMP) + timedelta(microseconds=1)
        stamp = f"{later:{_STAMP}}"
    return stamp


def _list_kept(checkpoint: Checkpoint, batch: int, removals: list[str]) -> list[str]:
    """What stays, but loading a version that goes needs it, and Spark may clean it up.

    The chain up to the first batch, every shared file of it and of the snapshots that go, and the
    log entries up to the first batch that Spark reads at a start.
    """
    needed = checkpoint.files_needed(batch)
    zips = [
        (store, file.name)
        for store in checkpoint.stores
        for file in store.versions.files_above(batch)
        if file.name.endswith(".zip")
    ]
    for shared in checkpoint.folder.map(lambda it: checkpoint.shared_files(*it), zips):
        needed += shared
    before = checkpoint.before(batch)
    earlier = checkpoint.before(before.id) if before else None
    ids = [batch, *(each.id for each in (before, earlier) if each)]
    needed += [f"{log}{id_}" for log in LOGS for id_ in ids]
    going = set(removals)
    return [
        path
        for main in dict.fromkeys(needed)
        if checkpoint.has(main)
        for path in checkpoint.with_sidecars(main)
        if path not in going
    ]
