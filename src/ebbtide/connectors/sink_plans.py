"""A sink and a first batch in, what it will do with the batches that run again, and the remedy."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from ebbtide import pipeline
from ebbtide.checkpoint.journal import Backup, SinkChange, read_sink_change
from ebbtide.config import Settings
from ebbtide.connectors.delta.sink import (
    EMPTY,
    Commit,
    Table,
    newest_version,
    noted_batch,
    read_others,
    read_table,
    restore_table,
    why_no_version,
)
from ebbtide.connectors.files.sink import ASIDE, LOG, aside, move_files, read_sink_log
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.pipeline import Console, Delta, Files, ForeachBatch, Kafka
from ebbtide.rewind.checks import OK, REFUSE, WARN, Check
from ebbtide.storage import Folder, open_folder

RESTORE, APPEND_AGAIN = "restore", "append-again"
REMEDIES = (RESTORE, APPEND_AGAIN)
_CHANGED = ("delta", "files")


@dataclass(frozen=True)
class Sink:
    """Where a query writes, as its owner noted it or as somebody named it."""

    kind: str
    name: str
    path: str = ""
    """Of a table or a folder; of Kafka, the topic."""

    @classmethod
    def of(cls, end: pipeline.Sink, settings: Settings) -> Sink:
        """The sink of a pipeline."""
        match end:
            case Kafka(topic=topic):
                return cls("kafka", f"topic {topic}", topic)
            case Delta(path=path):
                return cls("delta", path, settings.table(path))
            case Files(path=path, location=location):
                return cls("files", path, location)
            case ForeachBatch():
                return cls("foreach-batch", "its foreachBatch function")
            case Console():
                return cls("console", "the console")

    @classmethod
    def of_note(cls, note: Mapping[str, Any] | None) -> Sink | None:
        """From the runner's note."""
        if note is None:
            return None
        return cls(note["kind"], note["name"], note.get("path", ""))

    @classmethod
    def named(cls, *, table: str | None, files: str | None) -> Sink | None:
        """From what was typed."""
        if table and files:
            raise UsageError("--sink-table and --sink-files exclude each other.", "Give one.")
        # absolute: a saved plan or an undo may be carried out from elsewhere
        if table:
            return cls("delta", table, open_folder(table).url)
        return cls("files", files, open_folder(files).url) if files else None


@dataclass(frozen=True)
class Query:
    """What a sink must be told about the query and the batches that run again."""

    id: str
    ids: frozenset[str]
    """All that it has had: a rewind may give it a new one."""
    first: int
    last: int
    """The last batch that is committed, or planned."""
    planned_ms: int
    """When the first batch was planned."""
    committed: bool
    """Whether the first batch is done."""

    @property
    def batches(self) -> str:
        """In words."""
        return batches(self.first, self.last)


@dataclass(frozen=True)
class SinkPlan:
    """What the sink will do, and what a rewind does to it."""

    sink: Sink
    remedy: str | None = None
    new_query_id: bool = False
    change: SinkChange | None = None
    repeats: Mapping[str, tuple[int, int]] | None = None
    """Of Kafka, by partition: the first record that comes again, and the end."""

    def to_json(self) -> dict[str, Any]:
        """As plain values; `from_json` reads them back."""
        found = asdict(self)
        return {**found.pop("sink"), **found}

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> SinkPlan:
        """Read a saved one."""
        change, repeats = found["change"], found["repeats"]
        return cls(
            Sink(found["kind"], found["name"], found["path"]),
            found["remedy"],
            found["new_query_id"],
            None if change is None else read_sink_change(change),
            None if repeats is None else {p: (first, end) for p, (first, end) in repeats.items()},
        )


def batches(first: int, last: int) -> str:
    """A range of batches in words.

    >>> batches(3, 3), batches(3, 5)
    ('batch 3', 'batches 3 to 5')
    """
    return f"batches {first} to {last}" if last > first else f"batch {first}"


def plan_sink(
    folder: Folder,
    sink: Sink | None,
    query: Query,
    remedy: str | None,
    connection: KafkaConnection | None,
) -> tuple[SinkPlan | None, Check]:
    """What will be done to the sink, and what is to be said about it."""
    if sink is None:
        if remedy is not None:
            raise UsageError(
                f"--sink {remedy} needs to know the sink.", "Add --sink-table or --sink-files."
            )
        return None, Check(
            "sink",
            WARN,
            "not known, so what it does with batches that it has seen cannot be foretold: "
            "Delta and file sinks skip them, others write them again",
            "Name it with --sink-table or --sink-files.",
        )
    if remedy is not None and sink.kind not in _CHANGED:
        raise UsageError(
            f"--sink {remedy} is for Delta and file sinks, and this query writes to {sink.name}.",
            "Leave it out, or name the table that it writes with --sink-table.",
        )
    if sink.kind in _CHANGED and not sink.path:
        return SinkPlan(sink), Check(
            "sink",
            REFUSE,
            f"{sink.name} skips batches that it has seen, and where it lies was not noted",
            "Name it with --sink-table or --sink-files.",
        )
    match sink.kind:
        case "delta":
            return _plan_table(sink, query, remedy)
        case "files":
            return _plan_files(folder.beside(sink.path), sink, query, remedy)
        case "kafka":
            return _plan_topic(sink, query, connection)
    hint = "If it writes a Delta table, name that with --sink-table."
    return SinkPlan(sink), Check(
        "sink",
        WARN,
        f"{sink.name} gets the output of {query.batches} again",
        hint if sink.kind == "foreach-batch" else "",
    )


def _plan_table(sink: Sink, query: Query, remedy: str | None) -> tuple[SinkPlan, Check]:
    nothing = SinkPlan(sink, remedy)
    try:
        table = read_table(sink.path, query.id, query.ids, query.first, query.last)
    except CheckpointError as error:
        if remedy != APPEND_AGAIN:
            return nothing, Check("sink", REFUSE, error.problem.rstrip("."), error.next_step)
        return _add_only(sink, newest_version(sink.path)), Check(
            "sink", WARN, f"{error.problem} It stays as it is, and the query gets a new id"
        )
    if table is None:
        if query.committed:
            return nothing, Check(
                "sink",
                REFUSE,
                f"there is no Delta table at {sink.path}, though batch {query.first} is done",
                "Name the table that the query writes with --sink-table.",
            )
        return _add_only(sink, EMPTY), Check("sink", OK, f"there is no table at {sink.path} yet")
    if not table.held and not _skips(table, query):
        return _plan_unseen(table, sink, query, remedy)
    twice = "each batch takes the place of all rows" if table.complete else _twice(table)
    if remedy is None:
        back = "" if table.before is None else f" (the table back to {_version(table.before)})"
        return nothing, Check(
            "sink",
            REFUSE,
            _foretell(table, sink, query),
            f"Add --sink restore{back} or --sink append-again ({twice}).",
        )
    if remedy == RESTORE and (problem := _why_no_restore(table, query)) is not None:
        return nothing, Check("sink", REFUSE, *problem)
    to_version = table.before if remedy == RESTORE else table.version
    change = SinkChange(
        "delta",
        sink.path,
        table.version,
        to_version,
        table.app,
        table.skips if table.app else None,
        query.first - 1 if table.app else None,
    )
    whose = "what its own writer has noted is set back" if table.app else "the query gets a new id"
    said = (
        f"{sink.name} goes back from version {table.version} to {_version(to_version)}, before "
        f"batch {query.first}, and loses {table.rows:,} rows that {query.batches} write again"
        if remedy == RESTORE
        else f"{sink.name} stays as it is and gets the output of {query.batches} again: {twice}"
    )
    plan = SinkPlan(sink, remedy, table.app is None, change)
    return plan, Check("sink", OK if remedy == RESTORE else WARN, f"{said}; {whose}")


def _add_only(sink: Sink, version: int) -> SinkPlan:
    """The table stays as it is; an undo takes out what is added from now on."""
    return SinkPlan(sink, APPEND_AGAIN, True, SinkChange("delta", sink.path, version, version))


def _plan_unseen(
    table: Table, sink: Sink, query: Query, remedy: str | None
) -> tuple[SinkPlan, Check]:
    """The table shows nothing of the batches in question."""
    if table.app is not None:
        noted = SinkChange("delta", sink.path, table.version, table.version, table.app)
        noted = replace(noted, app_before=table.skips, app_after=table.skips)
        return SinkPlan(sink, remedy, False, noted), Check(
            "sink", OK, f"{sink.name} has not seen batch {query.first} yet"
        )
    if table.known:
        return _add_only(sink, table.version), Check(
            "sink",
            OK,
            f"{sink.name} has no rows of batch {query.first} or later; the query gets a new id",
        )
    if table.apps:
        names = ", ".join(f"{app} (up to {batch})" for app, batch in table.apps.items())
        return SinkPlan(sink, remedy), Check(
            "sink",
            REFUSE if remedy else WARN,
            f"writers of {sink.name} note numbers of their own: {names}. Which of them are batches "
            "of this query cannot be told; those that are will be skipped",
            "Set the table back yourself, and give your writer another txnAppId.",
        )
    return SinkPlan(sink, remedy), Check(
        "sink",
        REFUSE if remedy else WARN,
        f"the log of {sink.name} shows no batch of query {query.id}: it gets the output of "
        f"{query.batches} again if the query writes there at all",
        "Set the table back yourself if rows must not be there twice.",
    )


def _skips(table: Table, query: Query) -> bool:
    return table.skips is not None and table.skips >= query.first


def _foretell(table: Table, sink: Sink, query: Query) -> str:
    if not _skips(table, query):
        return f"{sink.name} would get the output of {query.batches} again: {_twice(table)}"
    whose = f"of {table.app}, which foreachBatch passes as txnAppId" if table.app else "of its id"
    skipped = f"{batches(query.first, table.skips or 0)} would be skipped"
    return (
        f"{skipped}, and new data up to batch {table.skips} lost: {sink.name} remembers the "
        f"batches {whose}"
    )


def _twice(table: Table) -> str:
    return f"{table.rows:,} rows would be there twice" if table.held else "no row is there twice"


def _version(version: int | None) -> str:
    return "no rows" if version == -1 else f"version {version}"


def _why_no_restore(table: Table, query: Query) -> tuple[str, str] | None:
    if table.before is None:
        lost = f"the log of {table.path} does not show batch {query.first} or one before it"
        return f"{lost}, so the version before it cannot be told", "Choose a later batch."
    if table.others:
        return _name_others(table.others)
    if problem := why_no_version(table.path, table.before):
        return problem, "Choose a later batch, or --sink append-again."
    return None


def _name_others(others: tuple[Commit, ...]) -> tuple[str, str]:
    named = "; ".join(str(commit) for commit in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"others have changed the table since, and a restore would undo that, too: {named}{more}",
        "Set the table back yourself, then add --sink append-again.",
    )


def _plan_files(
    folder: Folder, sink: Sink, query: Query, remedy: str | None
) -> tuple[SinkPlan, Check]:
    if remedy == APPEND_AGAIN:
        raise UsageError(
            "A file sink cannot append again: it skips batches, whatever the query's id is.",
            "Leave --sink out: its log goes back with the checkpoint.",
        )
    log = read_sink_log(folder, query.first)
    if log is None and query.committed:
        return SinkPlan(sink, RESTORE), Check(
            "sink",
            REFUSE,
            f"{folder.url} has no log of a file sink, though batch {query.first} is done",
            "Name the folder that the query writes to with --sink-files.",
        )
    change = SinkChange("files", folder.url)
    if log is None or log.newest is None or log.newest < query.first:
        return SinkPlan(sink, RESTORE, change=change), Check(
            "sink", OK, f"{sink.name} has not seen batch {query.first} yet"
        )
    if problem := log.problem or _why_not_writable(folder):
        return SinkPlan(sink, RESTORE), Check(
            "sink",
            REFUSE,
            f"{sink.name} would skip {batches(query.first, log.newest)}, and its log cannot go "
            f"back: {problem}",
            "Mend that, or choose a later batch.",
        )
    gone = f"; {len(log.missing)} are gone already" if log.missing else ""
    said = (
        f"{sink.name} would skip {batches(query.first, log.newest)}, so its log goes back, too; "
        f"{len(log.data):,} files of data are set aside{gone}"
    )
    change = replace(change, files=log.taken, kept=log.standing)
    return SinkPlan(sink, RESTORE, change=change), Check("sink", OK, said)


def _why_not_writable(folder: Folder) -> str | None:
    """Why files cannot be moved there; asked before anything is."""
    if not folder.local:
        return None
    places = [folder.root, folder.path(LOG), folder.path(ASIDE)]
    there = [place for place in places if os.path.lexists(place)]
    bad = next((p for p in there if not os.path.isdir(p) or not os.access(p, os.W_OK)), None)  # noqa: PTH112
    return None if bad is None else f"{bad} cannot be written to"


def _plan_topic(
    sink: Sink, query: Query, connection: KafkaConnection | None
) -> tuple[SinkPlan, Check]:
    """Kafka forgets nothing and knows nothing: what was written comes again."""
    from ebbtide.connectors.kafka.admin import offsets_since

    said = f"{sink.name} gets the output of {query.batches} again"
    found = offsets_since(connection, sink.path, query.planned_ms) if connection else {}
    if not found:
        return SinkPlan(sink), Check("sink", WARN, said)
    records = sum(end - first for first, end in found.values())
    where = ", ".join(f"{p}:{first}" for p, (first, end) in sorted(found.items()) if end > first)
    if records:
        said += f": what repeats begins at offset {where}, up to {records:,} records"
    repeats = {str(partition): span for partition, span in found.items()}
    return SinkPlan(sink, repeats=repeats), Check(
        "sink", WARN, said, "Readers can tell them by the header ebbtide-timeline."
    )


def plan_undo(folder: Folder, returning: Backup, ids: Collection[str]) -> SinkChange | None:
    """What an undo does to the sink; refused where it would undo the work of others."""
    change = returning.sink
    if change is None:
        return None
    alone = "To undo the rewind of the checkpoint alone, add --leave-sink."
    if change.kind == "files":
        log = read_sink_log(folder.beside(change.path), returning.first_batch, returning.id)
        if log is not None and log.problem:
            raise CheckpointError(f"{change.path} cannot go back: {log.problem}.", alone)
        taken, kept = (log.taken, log.standing or change.kept) if log else ((), ())
        return SinkChange("files", change.path, files=taken, kept=kept)
    version, others = read_others(change, ids)
    assert change.version is not None
    problem = _name_others(others)[0] if others else why_no_version(change.path, change.version)
    if problem is not None:
        raise CheckpointError(
            f"{change.path} cannot go back with the checkpoint: {problem}.", alone
        )
    return SinkChange(
        "delta",
        change.path,
        version,
        change.version,
        change.app,
        noted_batch(change.path, change.app),
        change.app_before,
    )


def change_sink(folder: Folder, backup: Backup, returning: Backup | None) -> None:
    """Carry out a planned change of the sink; run again, it finishes."""
    if backup.sink is None:
        return
    if backup.sink.kind == "delta":
        restore_table(folder, backup.sink, backup.id, backup.query_id)
        return
    there = folder.beside(backup.sink.path)
    back = returning.sink if returning else None
    move_files(there, backup.sink, back, (backup.id, returning.id if returning else ""))
    if returning is not None:
        there.remove_tree(aside(returning.id))


def forget(folder: Folder, backup: Backup) -> None:
    """Remove for good what a backup has set aside of the sink."""
    if backup.sink is not None and backup.sink.kind == "files":
        folder.beside(backup.sink.path).remove_tree(aside(backup.id))
