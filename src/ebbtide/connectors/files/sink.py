"""Files as a sink: roll the sink's log back, so that batches are written again.

The sink's log, `_spark_metadata`, has one entry per batch, and every tenth also holds all that came
before it. The sink skips batches up to the newest entry, whatever the query's id is.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from urllib.parse import unquote, urlparse

from ebbtide.checkpoint import Backup, Checkpoint, SinkChange, layout
from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import base
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import parse_json
from ebbtide.pipeline import Files, Pipeline
from ebbtide.storage import Folder, WritableFolder

LOG = "_spark_metadata"
QUARANTINE = "_ebbtide"
"""The folder for files that backups set aside; readers of the sink ignore it."""
COPIES = "copies"
"""Inside it: copies of log entries that stayed, because Spark cleans them up in time."""
_ENTRY = re.compile(r"(\d+)(\.compact)?")


class FilesSink(base.SinkConnector[Files]):
    """A folder that a query writes files to."""

    flag = "--sink-files"
    can_restore = True
    log = LOG

    def place(self, sink: Files, settings: Settings) -> base.SinkPlace:
        return base.SinkPlace(sink.kind, sink.path, sink.location)

    def plan(self, place: base.SinkPlace, query: base.ReplayedQuery) -> tuple[base.SinkPlan, Check]:
        if query.remedy == base.APPEND_AGAIN:
            raise UsageError(
                "A file sink cannot append again: it skips batches, whatever the query's id is.",
                "Leave --sink out: its log goes back with the checkpoint.",
            )
        return _plan_files(query.checkpoint.folder.beside(place.path), place, query)

    def examine(self, place: base.SinkPlace, checkpoint: Checkpoint) -> base.SinkEvidence | None:
        from ebbtide.connectors.files.evidence import examine_folder

        return examine_folder(place, checkpoint)

    def plan_undo(
        self, folder: Folder, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        log = read_sink_log(folder.beside(change.path), backup.first_batch, backup.id)
        if log is not None and log.problem:
            raise CheckpointError(
                f"{change.path} cannot go back: {log.problem}.",
                "To undo the rewind of the checkpoint alone, add --leave-sink.",
            )
        taken, kept = (log.taken, log.standing or change.kept) if log else ((), ())
        return SinkChange(change.kind, change.path, files=taken, kept=kept)

    def apply(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        there = folder.beside(change.path)
        back, coming = (returning.sink, returning.id) if returning else (None, "")
        move_files(there, change, back, (backup.id, coming))
        if returning is not None:
            there.remove_tree(quarantine_path(coming))

    def find_missing(self, folder: Folder, change: SinkChange, backup: Backup) -> str | None:
        there = folder.beside(change.path)
        paths = (quarantine_path(backup.id, file) for file in change.files)
        return next((path for path in paths if not there.exists(path)), None)

    def delete_quarantined(
        self, folder: WritableFolder, change: SinkChange, backup: Backup
    ) -> None:
        folder.beside(change.path).remove_tree(quarantine_path(backup.id))

    def format_change(self, change: SinkChange) -> str | None:
        number = len(change.files)
        return f"{number} files of {change.path} are set aside." if number else None

    def format_return(self, change: SinkChange) -> str:
        back = f"{len(change.files)} files of {change.path} come back"
        return f"{back}; those written since are set aside."

    def format_fork(self, name: str) -> str:
        return (
            f"Warning: the file sink {name} skips batches that it has seen, whoever runs them. "
            "Give the pipeline another folder first."
        )

    def format_output(self, sink: Files, settings: Settings) -> str:
        return f"files beside {sink.location}"

    def check_reprocess(self, sink: Files, pipeline: Pipeline, *, dated: bool = True) -> Check:
        return CheckKind.OUTPUT.warn(f"new files go beside the stream's, into {sink.reprocessed}")


def _plan_files(
    folder: Folder, place: base.SinkPlace, query: base.ReplayedQuery
) -> tuple[base.SinkPlan, Check]:
    log = read_sink_log(folder, query.first)
    if log is None and query.first_batch.committed:
        return base.SinkPlan(place, base.RESTORE), CheckKind.SINK.refuse(
            f"{folder.url} has no log of a file sink, though batch {query.first} is done",
            "Name the folder that the query writes to with --sink-files.",
        )
    if query.first_batch.committed and log and log.newest is not None and log.newest < query.first:
        return base.SinkPlan(place, base.RESTORE), CheckKind.SINK.refuse(
            f"the log of {folder.url} ends with batch {log.newest}, though batch {query.first} is "
            "done: the query seems to write to another folder",
            "Name that one with --sink-files. If you have set this one back yourself, use "
            "--sink none.",
        )
    change = SinkChange(place.kind, folder.url)
    if log is None or log.newest is None or log.newest < query.first:
        return base.SinkPlan(place, base.RESTORE, change=change), CheckKind.SINK.ok(
            f"{place.name} has not seen batch {query.first} yet"
        )
    skipped = f"{place.name} would skip {base.format_batches(query.first, log.newest)}"
    if problem := log.problem or _why_not_writable(folder):
        return base.SinkPlan(place, base.RESTORE), CheckKind.SINK.refuse(
            f"{skipped}, and its log cannot go back: {problem}",
            "Fix that, or choose a later batch.",
        )
    gone = f"; {len(log.missing)} are gone already" if log.missing else ""
    detail = (
        f"{skipped}, so its log goes back, too; {len(log.data):,} files of data are set aside{gone}"
    )
    change = replace(change, files=log.taken, kept=log.standing)
    return base.SinkPlan(place, base.RESTORE, change=change), CheckKind.SINK.ok(detail)


def _why_not_writable(folder: Folder) -> str | None:
    """Why files cannot be moved there; asked before anything is."""
    if not folder.local:
        return None
    places = [folder.root, folder.path(LOG), folder.path(QUARANTINE)]
    there = [place for place in places if os.path.lexists(place)]
    bad = next((p for p in there if not os.path.isdir(p) or not os.access(p, os.W_OK)), None)  # noqa: PTH112
    return None if bad is None else f"{bad} cannot be written to"


@dataclass(frozen=True)
class SinkLog:
    """What a file sink's log records of the batches from one on."""

    newest: int | None
    """It skips batches up to this one."""
    entries: tuple[str, ...]
    """Log entries of the batches in question, newest first, checksum files included."""
    data: tuple[str, ...]
    """The data files that those batches wrote, checksum files included."""
    missing: tuple[str, ...]
    """Data files that are gone."""
    standing: tuple[str, ...] = ()
    """The entries that list all that was written before, checksum files included."""
    problem: str | None = None
    """Why these would not stand alone."""

    @property
    def taken(self) -> tuple[str, ...]:
        """The files to set aside, in order: the log first, so that no reader misses a file."""
        return (*self.entries, *self.data)


def read_sink_log(folder: Folder, batch: int, backup_id: str | None = None) -> SinkLog | None:
    """Find what to set aside so that batches from one on are written again; None without a log.

    Where Spark has cleaned up entries before the batch, the copies that a backup has of them count.
    """
    names = folder.names(LOG)
    ids = entry_ids(names)
    copies = f"{quarantine_path(backup_id)}/{COPIES}" if backup_id else ""
    copied = entry_ids(folder.names(copies)) if copies else {}
    if not ids and not copied:
        return None
    going = sorted((name for name, id_ in ids.items() if id_ >= batch), key=ids.__getitem__)
    standing, place = _standing(ids, batch), LOG
    if standing is None and (standing := _standing(copied, batch)) is not None:
        place = copies
    entries = [f"{place}/{name}" for name in standing or ()]
    leaving = [f"{LOG}/{name}" for name in going]
    texts = folder.read_all([*entries, *leaving])
    before = {path for entry in entries for path in _paths(texts.get(entry, ""))}
    listed = dict.fromkeys(path for entry in leaving for path in _paths(texts.get(entry, "")))
    written = {
        path: folder.exists(path)
        for path in (_inside(folder, p) for p in listed if p not in before)
    }
    return SinkLog(
        max(ids.values(), default=None),
        _with_sidecars(reversed(going), names),
        tuple(file for path in written if written[path] for file in _with_checksums(folder, path)),
        tuple(path for path in written if not written[path]),
        _with_sidecars(standing or (), names) if place == LOG else (),
        None if standing is not None else f"the entries before batch {batch} are not all there",
    )


def entry_ids(names: Iterable[str]) -> dict[str, int]:
    """The batch of each entry in a file sink's log, by name."""
    return {name: int(m[1]) for name in names if (m := _ENTRY.fullmatch(name))}


def _with_sidecars(entries: Iterable[str], names: Collection[str]) -> tuple[str, ...]:
    files = (file for name in entries for file in (name, *layout.sidecars(name)))
    return tuple(f"{LOG}/{file}" for file in files if file in names)


def files_of_batch(folder: Folder, batch: int, backup_id: str | None = None) -> list[str] | None:
    """The data files that one batch wrote, here or in a backup; None if no log lists them.

    A compacted entry also lists what came before it.
    """
    if backup_id is None:
        here, later = (read_sink_log(folder, first) for first in (batch, batch + 1))
        if here is None or later is None or here.problem or later.problem:
            return None
        written = [path for path in here.data if path not in later.data]
        return [path for path in written if not path.endswith(".crc")]
    place = quarantine_path(backup_id, LOG)
    ids = entry_ids(folder.names(place))
    listed = {id_: _paths(folder.read(place, name) or "") for name, id_ in ids.items()}
    before = {path for id_, paths in listed.items() if id_ < batch for path in paths}
    written = [_inside(folder, path) for path in listed.get(batch, ()) if path not in before]
    # what was written before the rewind has stayed where it was
    moved = [quarantine_path(backup_id, path) for path in written]
    return [path for path in moved if folder.exists(path)] if batch in listed else None


def _standing(ids: dict[str, int], batch: int) -> list[str] | None:
    """The entries that list all that was written before a batch; None if they have gaps."""
    earlier = {id_: name for name, id_ in ids.items() if id_ < batch}
    whole = max((id_ for id_, name in earlier.items() if name.endswith(".compact")), default=None)
    wanted = range(0 if whole is None else whole, batch)
    if any(id_ not in earlier for id_ in wanted):
        return None
    return [earlier[id_] for id_ in wanted]


def _paths(text: str) -> list[str]:
    """The data files that a log entry names, as Spark writes them."""
    version, *lines = text.rstrip("\n").split("\n")
    if version not in ("v1", ""):
        raise CheckpointError(f"A file sink's log begins with {version[:20]!r}, not v1.")
    try:
        entries = [parse_json(line) for line in lines if line]
        added = [entry for entry in entries if entry.get("action", "add") == "add"]
        return [decode(str, entry["path"]) for entry in added]
    except INVALID:
        raise CheckpointError(
            "An entry of a file sink's log, _spark_metadata, is damaged.",
            "Put it back from a copy of the sink.",
        ) from None


def _inside(folder: Folder, uri: str) -> str:
    """A data file's path in the sink's folder."""
    path, root = PurePosixPath(unquote(urlparse(uri).path)), PurePosixPath("/", folder.root)
    for inside in (root, PurePosixPath(urlparse(folder.url).path or "/")):
        if path.is_relative_to(inside):
            return str(path.relative_to(inside))
    raise CheckpointError(
        f"The log of the file sink {folder.url} names {uri}, which lies elsewhere.",
        "Name the folder that the query writes to with --sink-files.",
    )


def _with_checksums(folder: Folder, path: str) -> list[str]:
    directory, _, name = path.rpartition("/")
    beside = [f"{directory}/{other}" if directory else other for other in layout.sidecars(name)]
    return [path, *(other for other in beside if folder.local and folder.exists(other))]


def quarantine_path(backup_id: str, path: str = "") -> str:
    """Where a file of the sink lies while it is set aside.

    >>> quarantine_path("b1", "_spark_metadata/7")
    '_ebbtide/b1/_spark_metadata/7'
    """
    return f"{QUARANTINE}/{backup_id}/{path}".rstrip("/")


def move_files(
    folder: WritableFolder,
    going: SinkChange,
    coming_back: SinkChange | None,
    backups: tuple[str, str],
) -> None:
    """Set the files of one timeline aside and bring those of another back; run again, it finishes.

    `backups` are the two: of what goes, and of what comes.
    """
    gone, coming = backups
    away, back = going.files, coming_back.files if coming_back else ()
    for path in going.kept:
        if folder.exists(path):
            folder.link(path, _copy(gone, path))
    for path in away:
        if folder.exists(aside := quarantine_path(gone, path)):
            # moved before; under the same name the other timeline's may be back already
            waiting = path not in back or folder.exists(quarantine_path(coming, path))
            if waiting and folder.exists(path):
                folder.remove(path)
        elif folder.exists(path):
            folder.move(path, aside)
    # the log last, from the oldest entry up: what it names is there already
    for path in reversed(back):
        if folder.exists(aside := quarantine_path(coming, path)):
            folder.move(aside, path)
    for path in coming_back.kept if coming_back else ():
        if not folder.exists(path):
            folder.link(_copy(coming, path), path)


def _copy(backup_id: str, path: str) -> str:
    return f"{quarantine_path(backup_id)}/{COPIES}/{path.rpartition('/')[2]}"
