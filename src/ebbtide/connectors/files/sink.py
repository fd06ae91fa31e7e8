"""Files as a sink: roll the sink's log back, so that batches are written again.

The sink skips batches up to the newest entry of its log, whatever the query's id is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import replace

from ebbtide.checkpoint import Backup, Checkpoint, SinkChange, log_files, read_logs
from ebbtide.checks import Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import base
from ebbtide.connectors.files.log import (
    COPIES,
    LOG,
    NO_FILES,
    QUARANTINE,
    empty_log,
    log_ids,
    quarantine_path,
    read_sink_log,
)
from ebbtide.errors import CheckpointError, EbbtideError, UsageError
from ebbtide.formatting import format_number
from ebbtide.pipeline import Files, Pipeline
from ebbtide.storage import Folder, WritableFolder, open_folder

FORMATS = ("parquet", "json", "csv", "orc", "text", "avro", "xml")
"""What Spark writes as files."""


class FilesSink(base.SinkConnector[Files]):
    """A folder that a query writes files to."""

    spark_name = "FileSink"

    flag = "--sink-files"
    can_restore = True
    log = LOG
    output_modes = ("append",)

    def place(self, sink: Files, settings: Settings) -> base.SinkPlace:
        return base.SinkPlace(sink.kind, sink.path, sink.location)

    def as_value(self, place: base.SinkPlace) -> Files | None:
        return Files(place.path, format="") if place.path else None  # which, its files tell

    def location(self, sink: Files, settings: Settings) -> str | None:
        return sink.location

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

    def recognize(self, name: str, options: Mapping[str, str]) -> base.SinkPlace | None:
        path = options.get("path", "")
        place = open_folder(path).url if path else ""
        shown = f"{name} files {path}".rstrip()
        return base.SinkPlace("files", shown, place) if name in FORMATS else None

    def newest_batch(self, place: base.SinkPlace, checkpoint: Checkpoint) -> int | None:
        folder = checkpoint.folder.beside(place.path)
        return max(log_ids(folder.names(LOG)).values(), default=None)

    def why_no_begin(self, place: base.SinkPlace, newest: int | None, batch: int) -> str | None:
        if batch - 1 <= (-1 if newest is None else newest):
            return None
        held = "is new" if newest is None else f"ends with batch {newest}"
        return (
            f"{place.name} {held}: its log would lack the batches before {batch}, so that Spark "
            "cannot read it, and fails at the tenth batch"
        )

    def begin(
        self,
        folder: WritableFolder,
        place: base.SinkPlace,
        logs: log_files.Logs,
        *,
        is_own: bool = False,
    ) -> bool:
        batch = logs.next_id
        try:
            there = folder.beside(place.path)
            ids = log_ids(there.names(LOG))
        except EbbtideError:  # Spark may reach what we cannot
            return False
        newest = max(ids.values(), default=-1)
        # after a crash, its own may have the batch that the checkpoint has only planned
        if newest > (logs.last_id if is_own else batch - 1):
            raise CheckpointError(
                f"{place.path} would skip {base.format_batches(batch, newest)}: its log says that "
                f"they are written, and {logs.location} has not run them.",
                "Name another folder in the pipeline.",
            )
        names = empty_log(batch) if batch else []
        if not ids.keys() <= set(names):
            return False
        for name in names:
            if name not in ids:
                there.write(f"{LOG}/{name}", NO_FILES)
        return True

    def plan_undo(
        self, folder: Folder, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        there = folder.beside(change.path)
        log = read_sink_log(there, backup.first_batch, backup.id)
        if log and (problem := log.problem or log.find_others(read_logs(folder))):
            raise CheckpointError(
                f"{change.path} cannot go back: {problem}.",
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

    def revert(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        there = folder.beside(change.path)
        back, coming = (returning.sink, returning.id) if returning else (None, "")
        going = back or SinkChange(change.kind, change.path)
        move_files(there, going, change, (coming, backup.id))
        there.remove_tree(quarantine_path(backup.id))

    def format_manual_return(self, change: SinkChange, backup: Backup) -> str:
        aside = f"{change.path}/{quarantine_path(backup.id)}"
        return f"Move the files in {aside} back to their places in {change.path} yourself."

    def find_missing(self, folder: Folder, change: SinkChange, backup: Backup) -> str | None:
        there = folder.beside(change.path)
        paths = (quarantine_path(backup.id, file) for file in change.files)
        return next((path for path in paths if not there.exists(path)), None)

    def delete_quarantined(
        self, folder: WritableFolder, change: SinkChange, backup: Backup
    ) -> None:
        folder.beside(change.path).remove_tree(quarantine_path(backup.id))

    def format_change(self, change: SinkChange) -> str | None:
        count, are = _count_data(change.files)
        return f"{count} of {change.path} {are} set aside." if change.files else None

    def format_return(self, change: SinkChange) -> str:
        count, are = _count_data(change.files)
        comes = "comes" if are == "is" else "come"
        return f"{count} of {change.path} {comes} back; those written since are set aside."

    def format_fork(self, name: str, *, starts_over: bool) -> str:
        skips = (
            f"Warning: the file sink {name} skips batches that it has seen, whoever runs them. "
            "Let the code that you run write to a new folder."
        )
        if starts_over:
            return skips
        return (
            f"{skips} If `ebbtide run` does not start it, also name that folder here with "
            "--sink-files, or Spark will not be able to read it."
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
            "Name that one with --sink-files. If you have restored this one yourself, use "
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
    if others := log.find_others(query.checkpoint.logs):
        return base.SinkPlan(place, base.RESTORE), CheckKind.SINK.refuse(
            f"{skipped}, and its log cannot go back, because another query writes there, too: "
            f"{others}",
            "Give each query a folder of its own, and restore this one yourself.",
        )
    gone = f"; {len(log.missing)} are gone already" if log.missing else ""
    count, are = _count_data(log.taken)
    detail = f"{skipped}, so its log goes back, too; {count} {are} set aside{gone}"
    change = replace(change, files=log.taken, kept=log.standing)
    return base.SinkPlan(place, base.RESTORE, change=change), CheckKind.SINK.ok(detail)


def _count_data(paths: Collection[str]) -> tuple[str, str]:
    """How many files with rows are among those of a sink, and the verb for them.

    >>> _count_data(["_spark_metadata/5", "part-1", ".part-1.crc", "day=5/part-2"])
    ('2 files of data', 'are')
    >>> _count_data(["part-1"])
    ('1 file of data', 'is')
    """
    places = [path.rpartition("/") for path in paths]
    number = sum(folder != LOG and not name.startswith(".") for folder, _, name in places)
    return f"{format_number(number, 'file')} of data", "is" if number == 1 else "are"


def _why_not_writable(folder: Folder) -> str | None:
    """Why files cannot be moved there; asked before anything is."""
    if not folder.local:
        return None
    places = [folder.root, folder.path(LOG), folder.path(QUARANTINE)]
    there = [place for place in places if os.path.lexists(place)]
    if (link := next((place for place in there[1:] if os.path.islink(place)), None)) is not None:  # noqa: PTH114
        return f"{link} is a link, which leads elsewhere"
    bad = next((p for p in there if not os.path.isdir(p) or not os.access(p, os.W_OK)), None)  # noqa: PTH112
    return None if bad is None else f"{bad} cannot be written to"


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
            # copied before; under the same name the other timeline's may be back already, and after
            # a rename what is there now is somebody else's
            waiting = path not in back or folder.exists(quarantine_path(coming, path))
            if waiting and not folder.local and folder.exists(path):
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
