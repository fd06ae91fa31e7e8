"""Apply a rewind plan to a checkpoint, undo it, or finish what was interrupted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from shlex import quote
from uuid import uuid4

from ebbtide.checkpoint import Backup, Journal, layout, read_checkpoint, read_logs
from ebbtide.checks import OK, WARN
from ebbtide.connectors import connector_of
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path
from ebbtide.rewind import checks
from ebbtide.rewind.backups import describe_backup, find_backup, require_whole
from ebbtide.rewind.holders import CHANGE, check_running
from ebbtide.rewind.journal import BACK_UP, FINISH, SINK, SINK_BACK, VERIFY, recover_journal
from ebbtide.rewind.lease import hold_lease
from ebbtide.rewind.plan import RewindPlan
from ebbtide.rewind.request import RewindRequest
from ebbtide.rewind.sinks import KnownSinks, remember_sinks, require_own_place
from ebbtide.rewind.steps import Advance, CheckpointChange
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import Folder, WritableFolder, open_folder, open_writable


def apply_rewind(
    plan: RewindPlan,
    *,
    connection: KafkaConnection | None = None,
    assume_stopped: bool = False,
    folder: WritableFolder | None = None,
    on_file: Advance = lambda _done, _all: None,
) -> Backup:
    """Apply a plan, or finish what was interrupted; returns the backup that an undo needs."""
    folder = folder or open_writable(plan.checkpoint)

    def same(journal: Journal) -> bool:
        return (journal.first_batch, journal.mode) == (plan.first_batch, plan.mode)

    finish = partial(
        finish_interrupted, assume_stopped=assume_stopped, folder=folder, on_file=on_file
    )
    if done := finish(plan.checkpoint, "rewind", same):
        return done
    plan.require_allowed()
    _require_stopped(folder, assume_stopped=assume_stopped)
    # 1
    with hold_lease(folder, CHANGE, assume_stopped=assume_stopped) as claimed:
        folder = claimed.writable
        _require_stopped(folder, assume_stopped=assume_stopped)  # by the store's clock
        # 2: one reading to compare with the plan and to go by
        checkpoint = read_checkpoint(plan.checkpoint)
        checkpoint.require_finished()
        if plan.first_batch not in checkpoint.logs.by_id:
            raise _changed(plan)
        fresh = RewindPlan.for_batch(
            checkpoint,
            plan.first_batch,
            target=plan.target,
            resolved=plan.resolved,
            replan=plan.mode == layout.REPLAN,
            connection=connection,
            sinks=plan.sinks,
        )
        if _identity(fresh) != _identity(plan):
            raise _changed(plan)
        _require_answers(plan, fresh)
        fresh.require_allowed()
        remember_sinks(folder, fresh.places)
        is_new_query = any(planned.new_query_id for planned in fresh.sinks)
        backup = describe_backup(
            checkpoint,
            "rewind",
            plan.first_batch,
            plan.mode,
            next_query_id=str(uuid4()) if is_new_query else None,
            sinks=tuple(planned.change for planned in fresh.sinks if planned.change),
        )
        _require_effect(plan, backup)
        change = CheckpointChange(claimed, on_file)
        return change.start(backup, None, plan.target, _sink_flags(folder, plan))


def _identity(plan: RewindPlan) -> tuple[object, ...]:
    """What must be the same when a plan is carried out: the checkpoint, and the sink's share."""
    sinks = tuple((planned.sink, planned.change) for planned in plan.sinks)
    return plan.fingerprint, plan.removals, sinks


def _require_answers(plan: RewindPlan, fresh: RewindPlan) -> None:
    """Refuse if a source that held everything when the plan was made cannot be asked now."""
    held = [check.kind for check in plan.checks if check.kind.is_source and check.verdict == OK]
    for check in fresh.checks:
        is_new = fresh.checks.count(check) > plan.checks.count(check)
        if check.verdict == WARN and check.kind in held and is_new:
            raise CheckpointError(
                f"{plan.checkpoint} is not rewound: the plan has {check.name} as ok, but now "
                f"{check.detail}.",
                f"{check.next} Or make a new plan: {_plan_again(plan)}".lstrip(),
            )


def _require_effect(plan: RewindPlan, backup: Backup) -> None:
    """Refuse a rewind that was just done; its empty backup would hide the one before."""
    asked = (plan.first_batch, plan.mode)
    last = [(part.first_batch, part.mode) for part in backup.timeline.rewinds[-1:]]
    if last == [asked] and not _has_effect(backup):
        raise CheckpointError(
            f"{plan.checkpoint} is at batch {plan.first_batch} already: nothing would leave it.",
            "Choose an earlier batch, or start the query.",
        )


def _has_effect(backup: Backup) -> bool:
    """Whether a change takes anything from the checkpoint, or changes the query's id or a sink."""
    sinks = any(not change.is_empty for change in backup.sinks)
    return bool(backup.taken or backup.next_query_id or sinks)


def _changed(plan: RewindPlan) -> CheckpointError:
    return CheckpointError(
        f"{plan.checkpoint} or its sink has changed since the plan was made, or the plan was "
        "edited.",
        f"If its query is running, stop it. Then make a new plan: {_plan_again(plan)}",
    )


def _plan_again(plan: RewindPlan) -> str:
    target, replan = ToBatch(plan.first_batch), plan.mode == layout.REPLAN
    command = RewindRequest(plan.checkpoint, target, replan).command()
    return f"{command} {_sink_flags(open_folder(plan.checkpoint), plan)}".rstrip()


def _sink_flags(folder: Folder, plan: RewindPlan) -> str:
    """The options with which a plan says again what becomes of the sink."""
    remedy = next((f"--sink {one.remedy}" for one in plan.sinks if one.remedy), "")
    return f"{remedy} {KnownSinks.read(folder).flags_for(plan.places)}".strip()


def undo_rewind(
    location: str,
    backup_id: str | None = None,
    *,
    assume_stopped: bool = False,
    leave_sink: bool = False,
    folder: WritableFolder | None = None,
    on_file: Advance = lambda _done, _all: None,
) -> Backup:
    """Swap the present timeline for the one in a backup, the newest by default; the sink, too.

    Returns the backup of the present, so that the undo can be undone.
    """
    folder = folder or open_writable(location)

    def same(journal: Journal) -> bool:
        return backup_id in (None, journal.restores)

    if done := finish_interrupted(
        location,
        "undo",
        same,
        leave_sink=leave_sink,
        assume_stopped=assume_stopped,
        folder=folder,
        on_file=on_file,
    ):
        return done
    chosen = find_backup(location, backup_id, with_sink=not leave_sink)
    _require_stopped(folder, assume_stopped=assume_stopped)
    # 1
    with hold_lease(folder, CHANGE, assume_stopped=assume_stopped) as claimed:
        folder = claimed.writable
        _require_stopped(folder, assume_stopped=assume_stopped)  # by the store's clock
        # 2: another process may have brought it back meanwhile
        checkpoint = read_checkpoint(location)
        checkpoint.require_finished()
        returning = find_backup(location, chosen.id)
        if leave_sink:
            returning = replace(returning, sinks=())
        else:
            _require_sink_known(folder, returning)
        require_whole(folder, returning)
        checks.require(checks.check_unknown(checkpoint), checkpoint.location)
        query_id, ids = checkpoint.logs.query_id, checkpoint.query_ids
        changes = tuple(
            connector_of(change.kind).sink.plan_undo(folder, change, returning.of_sink(change), ids)
            for change in returning.sinks
        )
        backup = describe_backup(
            checkpoint,
            "undo",
            returning.first_batch,
            returning.mode,
            returning,
            next_query_id=returning.query_id if returning.query_id != query_id else None,
            sinks=changes,
        )
        newest = Backup.read_all(folder)[-1].id
        if returning.id != newest and not returning.taken and not _has_effect(backup):
            # the empty backup of this undo would hide the newest one
            raise CheckpointError(
                f"Backup {returning.id} changes nothing: {folder.url} is as it was then.",
                f"The newest backup is {newest}: ebbtide undo {quote(folder.url)}",
            )
        return CheckpointChange(claimed, on_file).start(backup, returning, "undo")


def finish_interrupted(
    location: str,
    action: str,
    same: Callable[[Journal], bool],
    *,
    leave_sink: bool = False,
    assume_stopped: bool = False,
    folder: WritableFolder | None = None,
    on_file: Advance = lambda _done, _all: None,
) -> Backup | None:
    """Finish a change that was interrupted, if it is the same; refuse if it is another.

    One that had moved nothing yet is taken back instead, and None returned. With `leave_sink`, one
    that could not change its sink is taken back as well: nothing of the checkpoint has moved.
    """
    folder = folder or open_writable(location)
    if not _is_interrupted(folder):
        return None
    with hold_lease(folder, CHANGE, assume_stopped=assume_stopped) as claimed:
        folder = claimed.writable
        journal = recover_journal(folder)
        if journal is None:  # finished by somebody else in the meantime
            return None
        change = CheckpointChange(claimed, on_file)
        backup = Backup.read(folder, journal.backup)
        if backup is not None and journal.phase in (SINK, SINK_BACK) and not leave_sink:
            require_own_place(folder, backup)
        if journal.phase in (BACK_UP, SINK_BACK):
            change.take_back(journal)
            if (journal.action, action) == ("rewind", "undo"):
                # an undo was asked for, and must not go on to the rewind before this one
                raise CheckpointError(
                    f"The interrupted rewind of {location} had moved nothing yet, and is reverted.",
                    f"To undo an earlier one as well: ebbtide undo {quote(location)}",
                )
            return None
        if leave_sink and journal.phase == SINK:
            # what was done to the sink so far goes back, so that it is left as it was
            change.take_back_sinks(journal)
            return replace(backup, sinks=()) if backup and journal.action == "rewind" else None
        asked_for = journal.action == action and same(journal)
        if journal.phase == FINISH:
            # all is done, only the cleanup is left; if the query has run on, this is a new request
            asked_for = asked_for and read_logs(folder).digest == journal.after
        elif not asked_for:
            if (journal.action, action, journal.phase) != ("rewind", "undo", VERIFY):
                raise journal.interrupted(location)
            # everything has moved, but step 8 found a problem: an undo goes back
            change.read_back = False
        done = change.go_on(journal)
        return done if asked_for else None


def _is_interrupted(folder: Folder) -> bool:
    """Whether a change was, as its journal says, or the barrier where that is lost or damaged."""
    try:
        return (Journal.read(folder) or Journal.read_barrier(folder)) is not None
    except CheckpointError:
        return folder.exists(note_path(layout.JOURNAL))


def _require_stopped(folder: Folder, *, assume_stopped: bool) -> None:
    check = check_running(folder, read_logs(folder), assume_stopped=assume_stopped)
    checks.require(check, f"{folder.url} is left as it is")


def _require_sink_known(folder: Folder, returning: Backup) -> None:
    """Refuse a backup that does not say how the sink was, where a later one has changed it."""
    backups = [] if returning.sinks else Backup.read_all(folder)
    if later := [backup.id for backup in backups if backup.id > returning.id and backup.sinks]:
        raise CheckpointError(
            f"The sink of {folder.url} has gone back with a later change, {later[0]}, and "
            f"backup {returning.id} does not say how it was.",
            f"Undo the later one first: ebbtide undo {quote(folder.url)} --backup {later[0]}",
        )


def restore_offsets(folder: WritableFolder, batch: int, text: str) -> None:
    """Have a batch run next as it was planned: the entry of it that Spark finds at its start."""
    if not folder.exists(f"offsets/{batch}"):
        folder.write(f"offsets/{batch}", text)
