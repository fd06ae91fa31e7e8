"""Delta as a sink: what a table does with batches that run again, and how it is rolled back.

A Delta sink records the query's id and the batch with each commit, and skips batches up to the last
one that it has recorded. A restore of the table does not undo that, so the query gets a new id. A
foreachBatch function may keep such records itself (`txnAppId`, `txnVersion`), under a name of its
own: then the commit that restores the table also restores the recorded batch.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace

from ebbtide.checkpoint import Backup, Checkpoint, SinkChange
from ebbtide.checks import OK, WARN, Check, CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import base
from ebbtide.connectors.delta.held import HeldBatches, read_held_batches, read_others
from ebbtide.connectors.delta.log import (
    EMPTY,
    DeltaCommit,
    DeltaLog,
    find_state,
    table_errors,
)
from ebbtide.connectors.delta.rollback import (
    Rollback,
    is_marked,
    noted_batch,
    readable,
    roll_back_table,
)
from ebbtide.connectors.streams import OutputPosition
from ebbtide.errors import CheckpointError
from ebbtide.pipeline import Delta, Pipeline
from ebbtide.storage import Folder, WritableFolder, open_folder

_SINK = CheckKind.SINK


class DeltaSink(base.SinkConnector[Delta]):
    """A table that a query writes."""

    spark_name = "DeltaSink"

    flag = "--sink-table"
    remedies = base.SinkPlan.REMEDIES
    can_restore = True
    is_replaced = True
    log = "_delta_log"
    names_query = True
    output_modes = ("append", "complete")

    def recognize(self, name: str, options: Mapping[str, str]) -> base.SinkPlace | None:
        path = options.get("path", "")
        place = open_folder(path).url if path else ""
        return base.SinkPlace("delta", f"Delta {path}".rstrip(), place) if name == "delta" else None

    def place(self, sink: Delta, settings: Settings) -> base.SinkPlace:
        return base.SinkPlace(sink.kind, sink.path, settings.table(sink.path))

    def as_value(self, place: base.SinkPlace) -> Delta | None:
        return Delta(place.path) if place.path else None

    def location(self, sink: Delta, settings: Settings) -> str | None:
        return settings.table(sink.path)

    def plan(self, place: base.SinkPlace, query: base.ReplayedQuery) -> tuple[base.SinkPlan, Check]:
        return _plan_table(place, query)

    def examine(self, place: base.SinkPlace, checkpoint: Checkpoint) -> base.SinkEvidence | None:
        from ebbtide.connectors.delta.evidence import examine_table

        return examine_table(place, checkpoint)

    def newest_batch(self, place: base.SinkPlace, checkpoint: Checkpoint) -> int | None:
        # only under the present id: what a rewind restored was noted under an earlier one
        with suppress(CheckpointError, *table_errors()):
            state = find_state(place.path)
            return state.noted(checkpoint.logs.query_id) if state else None
        return None

    def find_others(self, place: base.SinkPlace, checkpoint: Checkpoint) -> list[base.SinkEvidence]:
        from ebbtide.connectors.delta.evidence import find_tables_beside

        return find_tables_beside(place, checkpoint)

    def plan_undo(
        self, folder: Folder, change: SinkChange, backup: Backup, ids: Collection[str]
    ) -> SinkChange:
        version, others = read_others(change, ids)
        assert change.version is not None
        if version == change.version == EMPTY:  # there is still no table
            return change
        with readable(change.path):
            rollback = Rollback.read(change.path, change.version)
        if problem := _name_others(others) if others else rollback.problem:
            raise CheckpointError(
                f"{change.path} cannot go back with the checkpoint: {problem[0]}.",
                "To undo the rewind of the checkpoint alone, add --leave-sink.",
            )
        return replace(
            change,
            version=version,
            to_version=change.version,
            app_before=noted_batch(change.path, change.app),
            app_after=change.app_before,
        )

    def apply(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        roll_back_table(folder, change, backup.id, backup.query_id)

    def revert(
        self, folder: WritableFolder, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> None:
        back = f"{backup.id}-back"
        if is_marked(change, backup.id) and not is_marked(change, back):
            undo = self.plan_undo(folder, change, backup, Backup.query_ids(folder, backup.query_id))
            roll_back_table(folder, undo, back, backup.query_id)

    def format_manual_return(self, change: SinkChange, backup: Backup) -> str:
        return f"Restore it yourself, to version {change.version}."

    def format_change(self, change: SinkChange) -> str | None:
        if change.version == change.to_version:
            return None
        is_empty = change.to_version == EMPTY
        now = "has no rows now" if is_empty else f"is now as it was at version {change.to_version}"
        return f"The table {change.path} was at version {change.version}, and {now}."

    def format_return(self, change: SinkChange) -> str:
        """The version that the table goes back to.

        >>> DeltaSink().format_return(SinkChange("delta", "/visits", version=7, to_version=3))
        'The table /visits goes back to how it was at version 7.'
        """
        at = "no rows" if change.version == EMPTY else f"how it was at version {change.version}"
        return f"The table {change.path} goes back to {at}."

    def limit(self, asked: base.RetentionRequest) -> base.Retention:
        from ebbtide.connectors.delta.retention import limit_by_sink, limit_table

        return limit_table(asked, limit_by_sink)

    def position(self, pipeline: Pipeline, settings: Settings) -> OutputPosition:
        assert isinstance(pipeline.sink, Delta)
        if (state := find_state(settings.table(pipeline.sink.path))) is None:
            return OutputPosition()
        return OutputPosition(version=state.version, table=state.id)

    def format_output(self, sink: Delta, settings: Settings) -> str:
        return f"Delta table {settings.table(sink.path)}"

    def check_reprocess(self, sink: Delta, pipeline: Pipeline, *, dated: bool = True) -> Check:
        if dated:
            return CheckKind.OUTPUT.ok(f"the range of table {sink.path} is replaced in one commit")
        return CheckKind.OUTPUT.refuse(
            "the results do not say when they begin, so their range of the Delta table "
            "cannot be replaced",
            "Write to a topic instead."
            if pipeline.sessions
            else "Keep the event time, or the window, in the transform's result.",
        )


def _plan_table(sink: base.SinkPlace, query: base.ReplayedQuery) -> tuple[base.SinkPlan, Check]:
    remedy = query.remedy
    unchanged = base.SinkPlan(sink, remedy)
    try:
        table = read_held_batches(sink.path, query)
    except CheckpointError as error:
        if remedy != base.APPEND_AGAIN:
            return unchanged, _SINK.refuse(error.problem.rstrip("."), error.next_step)
        return _add_only(sink, DeltaLog(sink.path).newest), _SINK.warn(
            f"{error.problem} It stays as it is, and the query gets a new id"
        )
    if table is None and query.first_batch.committed:
        return unchanged, _SINK.refuse(
            f"there is no Delta table at {sink.path}, though batch {query.first} is done",
            "Name the table that the query writes with --sink-table.",
        )
    if table is None:
        return _add_only(sink, EMPTY), _SINK.ok(f"there is no table at {sink.path} yet")
    if not table.held and not _skips(table, query):
        return _plan_unseen(table, sink, query)
    if remedy is None:
        back = "" if table.before is None else f" (the table back to {_version(table.before)})"
        return unchanged, _SINK.refuse(
            _predict(table, sink, query),
            f"Add --sink restore{back} or --sink append-again ({_twice(table)}).",
        )
    if remedy == base.RESTORE and (problem := _why_no_restore(table, query)) is not None:
        return unchanged, _SINK.refuse(*problem)
    return _plan_change(table, sink, query)


def _plan_change(
    table: HeldBatches, sink: base.SinkPlace, query: base.ReplayedQuery
) -> tuple[base.SinkPlan, Check]:
    """The table goes back, or stays as it is; a function's own notes go back in both cases."""
    is_restore, how = query.remedy == base.RESTORE, ""
    to_version = table.before if is_restore else table.version
    assert to_version is not None
    if is_restore or table.app:
        with readable(sink.path):
            rollback = Rollback.read(sink.path, to_version)
        if rollback.problem is not None:
            return base.SinkPlan(sink, query.remedy), _SINK.refuse(*rollback.problem)
        how = f"; with Spark, which takes a minute: {rollback.spark}" if rollback.spark else ""
    change = SinkChange(sink.kind, sink.path, table.version, to_version, table.app)
    if table.app:
        change = replace(change, app_before=table.skips, app_after=query.first - 1)
    whose = "what its own writer has noted is restored" if table.app else "the query gets a new id"
    effect = (
        f"{sink.name} goes back from version {table.version} to {_version(to_version)}, before "
        f"batch {query.first}, and loses {table.rows:,} rows that {query.batches} write again"
        if is_restore
        else f"{sink.name} stays as it is and gets the output of {query.batches} again: "
        f"{_twice(table)}"
    )
    plan = base.SinkPlan(sink, query.remedy, table.app is None, change)
    return plan, Check(_SINK, OK if is_restore else WARN, f"{effect}; {whose}{how}")


def _add_only(sink: base.SinkPlace, version: int) -> base.SinkPlan:
    """The table stays as it is; an undo takes out what is added from now on."""
    return base.SinkPlan(
        sink, base.APPEND_AGAIN, True, SinkChange(sink.kind, sink.path, version, version)
    )


def _plan_unseen(
    table: HeldBatches, sink: base.SinkPlace, query: base.ReplayedQuery
) -> tuple[base.SinkPlan, Check]:
    """The table shows nothing of the batches in question."""
    version, query_id = table.version, query.checkpoint.logs.query_id
    if table.app is not None:
        noted = (table.app, table.skips, table.skips)
        change = SinkChange(sink.kind, sink.path, version, version, *noted)
        return base.SinkPlan(sink, query.remedy, change=change), _SINK.ok(
            f"{sink.name} has not seen batch {query.first} yet"
        )
    if table.known and query.first_batch.committed:
        return base.SinkPlan(sink, query.remedy), _SINK.refuse(
            f"{sink.name} ends with an earlier batch of this query, though batch {query.first} is "
            "done: the query seems to write another table now",
            "Name that one with --sink-table.",
        )
    if table.known:
        return _add_only(sink, version), _SINK.ok(
            f"{sink.name} has no rows of batch {query.first} or later; the query gets a new id"
        )
    if table.apps:
        names = ", ".join(f"{app} (up to {batch})" for app, batch in table.apps.items())
        return base.SinkPlan(sink, query.remedy), _SINK.refuse(
            f"writers of {sink.name} note numbers of their own: {names}. Which of them are batches "
            "of this query cannot be told; those that are would be skipped",
            "Restore the table yourself, and give your writer another txnAppId. Then use "
            "--sink none.",
        )
    return base.SinkPlan(sink, query.remedy), _SINK.refuse(
        f"the log of {sink.name} shows no batch of query {query_id}, so it is most likely another "
        "table",
        "Name the right one with --sink-table. If a foreachBatch function writes it without "
        "txnAppId, restore it yourself and use --sink none.",
    )


def _skips(table: HeldBatches, query: base.ReplayedQuery) -> bool:
    return table.skips is not None and table.skips >= query.first


def _predict(table: HeldBatches, sink: base.SinkPlace, query: base.ReplayedQuery) -> str:
    if not _skips(table, query):
        return f"{sink.name} would get the output of {query.batches} again: {_twice(table)}"
    whose = f"of {table.app}, which foreachBatch passes as txnAppId" if table.app else "of its id"
    skipped = f"{base.format_batches(query.first, table.skips or 0)} would be skipped"
    return (
        f"{skipped}, and new data up to batch {table.skips} lost: {sink.name} remembers the "
        f"batches {whose}"
    )


def _twice(table: HeldBatches) -> str:
    if table.complete:
        return "each batch takes the place of all rows"
    return f"{table.rows:,} rows would be there twice" if table.held else "no row is there twice"


def _version(version: int | None) -> str:
    return "no rows" if version == -1 else f"version {version}"


def _why_no_restore(table: HeldBatches, query: base.ReplayedQuery) -> tuple[str, str] | None:
    if table.before is None:
        lost = f"the log of {table.path} does not show batch {query.first} or one before it"
        return f"{lost}, so the version before it cannot be told", "Choose a later batch."
    if table.others:
        return _name_others(table.others)
    return None


def _name_others(others: tuple[DeltaCommit, ...]) -> tuple[str, str]:
    named = "; ".join(str(commit) for commit in others[:3])
    more = f" and {len(others) - 3} more" if len(others) > 3 else ""
    return (
        f"others have changed the table since, and a restore would undo that, too: {named}{more}",
        "Restore the table yourself, then add --sink append-again.",
    )
