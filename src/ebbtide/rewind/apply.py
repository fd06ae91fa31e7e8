"""A plan in, a rewound checkpoint out; and back again. The one module that changes a checkpoint.

Steps of a rewind: **1** lock; **2** read again, refuse if anything changed; **3** barrier: a log
entry that Spark refuses to read; **4** back up, by link, what an undo needs and Spark may clean up;
**5** the sink; **6** state, then operator metadata, by rename into the backup; **7** commits and
offsets from the top down, then the query's id; **8** read back and verify; **9** one audit line;
**10** barrier away, unlock.

An undo takes the same steps, and in 5 to 7 what an earlier backup holds comes back after the
present has left: timelines are swapped. The sink comes first, because others may write to it: up to
then nothing has moved, so a failure is taken back. Later a change is finished when it is run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timedelta, timezone
from shlex import quote
from uuid import uuid4

from ebbtide.checkpoint.journal import (
    AUDIT,
    BARRIER,
    Backup,
    Journal,
    SinkChange,
    backup_path,
    barrier_line,
    branch,
    known_ids,
    list_backups,
    note_ids,
    read_backup,
    read_journal,
    remove_journal,
    rewind_command,
    write_backup,
    write_journal,
    write_timeline,
)
from ebbtide.checkpoint.reader import Checkpoint, read_checkpoint, read_logs
from ebbtide.connectors import connector_of
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import CheckpointError
from ebbtide.processes import whoami
from ebbtide.rewind import checks
from ebbtide.rewind.backups import (
    KEPT,
    LOGS,
    METADATA,
    QUERY,
    TAKEN,
    describe_backup,
    find_backup,
    require_whole,
    select_backups,
)
from ebbtide.rewind.lease import CHANGE, Claim, hold_lease
from ebbtide.rewind.plan import REPLAN, Plan, list_removals, plan_for
from ebbtide.storage import Folder, open_folder
from ebbtide.times import in_utc

_BACK_UP, _SINK, _STATE_AWAY, _STATE_BACK = "4 back up", "5 sink", "6 state away", "6 state back"
_LOGS_AWAY, _LOGS_BACK, _QUERY_ID = "7 logs away", "7 logs back", "7 query id"
_VERIFY, _FINISH = "8 verify", "10 finish"
_PHASES = (
    *(_BACK_UP, _SINK, _STATE_AWAY, _STATE_BACK, _LOGS_AWAY, _LOGS_BACK, _QUERY_ID),
    *(_VERIFY, _FINISH),
)
Advance = Callable[[int, int], None]


def _silent(_done: int, _all: int) -> None:
    """Nobody wants to know how far it is."""


def apply_rewind(
    plan: Plan,
    *,
    connection: KafkaConnection | None = None,
    assume_stopped: bool = False,
    folder: Folder | None = None,
    on_file: Advance = _silent,
) -> Backup:
    """Carry out a plan, or finish it; returns the backup that an undo takes back."""
    folder = folder or open_folder(plan.checkpoint)
    finished = finish_interrupted(
        plan.checkpoint,
        "rewind",
        lambda journal: (journal.first_batch, journal.mode) == (plan.first_batch, plan.mode),
        folder=folder,
        on_file=on_file,
    )
    if finished is not None:
        return finished
    plan.require_allowed()
    _require_stopped(folder, assume_stopped=assume_stopped)
    # 1
    with hold_lease(folder, CHANGE) as claimed:
        # 2: one reading to compare with the plan and to go by
        checkpoint = read_checkpoint(plan.checkpoint)
        checkpoint.require_finished()
        if plan.first_batch not in checkpoint.logs.by_id:
            raise _changed(plan)
        fresh = plan_for(
            checkpoint,
            plan.first_batch,
            target=plan.target,
            resolved=plan.resolved,
            replan=plan.mode == REPLAN,
            connection=connection,
            sink=plan.sink.sink if plan.sink else None,
            remedy=plan.sink.remedy if plan.sink else None,
        )
        if _identity(fresh) != _identity(plan):
            raise _changed(plan)
        fresh.require_allowed()
        backup = describe_backup(
            checkpoint,
            "rewind",
            plan.first_batch,
            plan.mode,
            next_query_id=str(uuid4()) if fresh.sink and fresh.sink.new_query_id else None,
            sink=fresh.sink.change if fresh.sink else None,
        )
        return _Change(folder, claimed, on_file).start(backup, None, plan.target)


def _identity(plan: Plan) -> tuple[object, ...]:
    """What must be the same when a plan is carried out: the checkpoint, and the sink's share."""
    return plan.fingerprint, plan.removals, plan.sink and (plan.sink.sink, plan.sink.change)


def _changed(plan: Plan) -> CheckpointError:
    return CheckpointError(
        f"{plan.checkpoint} or its sink has changed since the plan was made, or the plan was "
        "edited.",
        "If its query is running, stop it. Then make a new plan: "
        f"{rewind_command(plan.checkpoint, plan.first_batch, plan.mode)}",
    )


def undo_rewind(
    location: str,
    backup_id: str | None = None,
    *,
    assume_stopped: bool = False,
    leave_sink: bool = False,
    folder: Folder | None = None,
    on_file: Advance = _silent,
) -> Backup:
    """Swap the present timeline for the one in a backup, the newest by default; the sink, too.

    Returns the backup of the present, so that the undo can be undone.
    """
    folder = folder or open_folder(location)
    finished = finish_interrupted(
        location,
        "undo",
        lambda journal: backup_id in (None, journal.restores),
        folder=folder,
        on_file=on_file,
    )
    if finished is not None:
        return finished
    returning = find_backup(folder, read_logs(folder).query_id, backup_id)
    _require_stopped(folder, assume_stopped=assume_stopped)
    # 1
    with hold_lease(folder, CHANGE) as claimed:
        # 2
        checkpoint = read_checkpoint(location)
        checkpoint.require_finished()
        if leave_sink:
            returning = replace(returning, sink=None)
        else:
            _require_sink_known(folder, returning)
        require_whole(folder, returning)
        _require_known(checkpoint)
        query_id = checkpoint.logs.query_id
        backup = describe_backup(
            checkpoint,
            "undo",
            returning.first_batch,
            returning.mode,
            returning,
            next_query_id=returning.query_id if returning.query_id != query_id else None,
            sink=_plan_sink_undo(folder, returning, known_ids(folder, query_id)),
        )
        return _Change(folder, claimed, on_file).start(backup, returning, "undo")


def finish_interrupted(
    location: str,
    action: str,
    same: Callable[[Journal], bool],
    *,
    folder: Folder | None = None,
    on_file: Advance = _silent,
) -> Backup | None:
    """Finish a change that was interrupted, if it is the same; refuse if it is another.

    One that had moved nothing yet is taken back instead, and None returned.
    """
    folder = folder or open_folder(location)
    if read_journal(folder) is None:
        return None
    with hold_lease(folder, CHANGE) as claimed:
        journal = read_journal(folder)
        if journal is None:  # finished by somebody else in the meantime
            return None
        change = _Change(folder, claimed, on_file)
        if journal.phase == _BACK_UP:
            change.take_back(journal)
            return None
        asked_for = journal.action == action and same(journal)
        if journal.phase == _FINISH:
            # all is done, and there is only to tidy up; if the query has run on, this is a new wish
            asked_for = asked_for and read_logs(folder).digest == journal.after
        elif not asked_for:
            if (journal.action, action, journal.phase) != ("rewind", "undo", _VERIFY):
                raise journal.interrupted(location)
            # everything has moved, and what was found does not please: the way out is back
            change.read_back = False
        backup = change.go_on(journal)
        return backup if asked_for else None


def prune_backups(
    location: str, *, older_than: timedelta | None = None, keep: int | None = None
) -> list[Backup]:
    """Remove old backups for good; returns them."""
    folder = open_folder(location)
    with hold_lease(folder, CHANGE, beside_run=True):
        gone = select_backups(list_backups(folder), older_than=older_than, keep=keep)
        for backup in gone:
            folder.remove_tree(backup_path(backup.id))
            if backup.sink is not None:
                sink = connector_of(backup.sink.kind).sink
                sink.delete_quarantined(folder, backup.sink, backup)
            _write_audit(folder, "prune", backup)
    return gone


def _require_stopped(folder: Folder, *, assume_stopped: bool) -> None:
    check = checks.check_running(folder, read_logs(folder), assume_stopped=assume_stopped)
    if check.verdict == checks.REFUSE:
        raise CheckpointError(f"{folder.url} is left as it is: {check.detail}.", check.next)


def _plan_sink_undo(folder: Folder, returning: Backup, ids: Collection[str]) -> SinkChange | None:
    if (change := returning.sink) is None:
        return None
    return connector_of(change.kind).sink.plan_undo(folder, change, returning, ids)


def _require_sink_known(folder: Folder, returning: Backup) -> None:
    """Refuse a backup that does not say how the sink was, where a later one has changed it."""
    later = [backup for backup in list_backups(folder) if backup.id > returning.id and backup.sink]
    if returning.sink is None and later:
        raise CheckpointError(
            f"The sink of {folder.url} has gone back with a later change, {later[0].id}, and "
            f"backup {returning.id} does not say how it was.",
            f"Undo the later one first: ebbtide undo {quote(folder.url)} --backup {later[0].id}",
        )


def _require_known(checkpoint: Checkpoint) -> None:
    check = checks.check_unknown(checkpoint)
    if check.verdict == checks.REFUSE:
        raise CheckpointError(f"{checkpoint.location}: {check.detail}.", check.next)


class _Change:
    """One rewind or undo, from the barrier to its removal."""

    def __init__(self, folder: Folder, claimed: Claim, on_file: Advance) -> None:
        self._folder, self._claimed, self._on_file = folder, claimed, on_file
        self.read_back = True

    def start(self, backup: Backup, returning: Backup | None, target: str) -> Backup:
        """Steps 3 to 10."""
        folder = self._folder
        top = [*folder.ids("offsets"), *folder.ids("commits")]
        top += [int(path.rpartition("/")[2]) for path in _main_logs(returning)]
        journal = Journal(
            action=backup.action,
            backup=backup.id,
            restores=returning.id if returning else None,
            first_batch=backup.first_batch,
            mode=backup.mode,
            target=target,
            barrier=max(top, default=-1) + 1,
            phase=_BACK_UP,
        )
        try:
            # 3
            write_journal(folder, journal)
            folder.write(f"offsets/{journal.barrier}", barrier_line(journal, folder) + "\n")
            # 4
            self._each(
                lambda path: folder.link(path, backup_path(backup.id, KEPT, path)), backup.kept
            )
            for path in METADATA if backup.next_query_id else ():
                if folder.exists(path):
                    folder.link(path, backup_path(backup.id, QUERY, path))
            write_backup(folder, backup)
        except OSError as error:
            try:
                self.take_back(journal)
            except OSError:
                raise journal.interrupted(folder.url) from None
            raise CheckpointError(
                f"{folder.url} cannot be backed up: {error.strerror or error}. "
                "It is as it was before.",
                "Make room or mend the permissions, then try again.",
            ) from None
        return self.go_on(replace(journal, phase=_SINK))

    def take_back(self, journal: Journal) -> None:
        """Undo steps 3 and 4: nothing has moved yet."""
        self._lift_barrier(journal)
        self._folder.remove_tree(backup_path(journal.backup))
        remove_journal(self._folder)

    def go_on(self, journal: Journal) -> Backup:
        """Steps 5 to 10, from where the journal says."""
        folder = self._folder
        backup = read_backup(folder, journal.backup)
        assert backup is not None
        returning = read_backup(folder, journal.restores) if journal.restores else None
        steps: dict[str, Callable[[], None]] = {
            # 5
            _SINK: lambda: self._change_sink(journal, backup, returning),
            # 6
            _STATE_AWAY: lambda: self._take(backup, logs=False),
            _STATE_BACK: lambda: self._put_back(returning, logs=False),
            # 7
            _LOGS_AWAY: lambda: self._take(backup, logs=True),
            _LOGS_BACK: lambda: self._put_back(returning, logs=True),
            _QUERY_ID: lambda: self._change_query_id(backup, returning),
            # 8, 9
            _VERIFY: lambda: self._conclude(journal.backup, returning),
        }
        try:
            for phase in _PHASES[_PHASES.index(journal.phase) :]:
                journal = replace(journal, phase=phase)
                if phase == _FINISH and not journal.after:
                    journal = replace(journal, after=read_logs(folder).digest)
                write_journal(folder, journal)
                if phase in steps:
                    steps[phase]()
            # 10
            self._lift_barrier(journal)
            if journal.restores:
                folder.remove_tree(backup_path(journal.restores))
            remove_journal(folder)
        except OSError as error:
            interrupted = journal.interrupted(folder.url)
            raise CheckpointError(
                f"{interrupted.problem[:-1]}: {error.strerror or error}. No file is lost, and "
                "Spark does not start on it.",
                interrupted.next_step,
            ) from None
        return read_backup(folder, journal.backup) or backup

    def _change_sink(self, journal: Journal, backup: Backup, returning: Backup | None) -> None:
        if (change := backup.sink) is None:
            return
        try:
            connector_of(change.kind).sink.apply(self._folder, change, backup, returning)
        except CheckpointError as error:
            # refused by the sink before it changed anything
            self.take_back(journal)
            raise CheckpointError(
                f"{error.problem} The checkpoint is as it was before.", error.next_step
            ) from None

    def _change_query_id(self, backup: Backup, returning: Backup | None) -> None:
        """Give the query another id: a new one, or the one that it had in another timeline."""
        if backup.next_query_id is None:
            return
        folder, (metadata, checksum) = self._folder, METADATA
        note_ids(folder, backup.query_id, backup.next_query_id)
        text = json.dumps({"id": backup.next_query_id}, separators=(",", ":"))
        if folder.exists(checksum):
            folder.remove(checksum)
        folder.write(metadata, text)
        if returning is not None:
            kept = backup_path(returning.id, QUERY, checksum)
            if folder.exists(kept):
                folder.link(kept, checksum)

    def _take(self, backup: Backup, *, logs: bool) -> None:
        def take(path: str) -> None:
            # moved before an interruption, or removed by somebody else: step 8 tells which
            with suppress(FileNotFoundError):
                if self._folder.exists(path):
                    self._folder.move(path, backup_path(backup.id, TAKEN, path))

        self._each(take, _logs_or_state(backup.taken, logs), in_order=logs)
        if not logs and backup.first_batch == 0 and backup.mode == REPLAN:
            self._folder.remove_empty("state")

    def _put_back(self, returning: Backup | None, *, logs: bool) -> None:
        if returning is None:
            return

        def put_back(path: str) -> None:
            if self._folder.exists(kept := backup_path(returning.id, TAKEN, path)):
                self._folder.move(kept, path)

        def link_back(path: str) -> None:
            if not self._folder.exists(path):
                self._folder.link(backup_path(returning.id, KEPT, path), path)

        # the logs from the bottom up, as Spark would have written them
        self._each(put_back, _logs_or_state(returning.taken, logs)[::-1], in_order=logs)
        self._each(link_back, _logs_or_state(returning.kept, logs))

    def _conclude(self, backup_id: str, returning: Backup | None) -> None:
        # 8
        if returning is None:
            self._link_back(backup_id)
        backup = self._note_vanished(backup_id)
        backup = self._take_strays(backup, returning)
        if self.read_back:
            self._read_back(backup, returning)
        # 9
        timeline = returning.timeline if returning else None
        if timeline is None:
            timeline = branch(backup.timeline, backup.first_batch, backup.mode, backup.id)
        write_timeline(self._folder, timeline)
        _write_audit(self._folder, backup.action, backup)

    def _note_vanished(self, backup_id: str) -> Backup:
        """Leave out what was neither moved by us nor left where it was."""
        folder = self._folder
        backup = read_backup(folder, backup_id)
        assert backup is not None
        moved = folder.map(
            folder.exists, [backup_path(backup_id, TAKEN, path) for path in backup.taken]
        )
        missing = [path for path, is_ in zip(backup.taken, moved, strict=True) if not is_]
        if vanished := {path for path in missing if not folder.exists(path)}:
            taken = tuple(path for path in backup.taken if path not in vanished)
            backup = replace(backup, taken=taken, vanished=tuple(sorted(vanished)))
            write_backup(folder, backup)
        return backup

    def _link_back(self, backup_id: str) -> None:
        """Bring back what had to stay, and somebody else removed all the same."""
        backup = read_backup(self._folder, backup_id)
        for path in backup.kept if backup else ():
            if not self._folder.exists(path):
                self._folder.link(backup_path(backup_id, KEPT, path), path)

    def _take_strays(self, backup: Backup, returning: Backup | None) -> Backup:
        """Take what somebody else wrote meanwhile: a late snapshot would leak its timeline."""
        there = read_checkpoint(self._folder.url)
        back = {*returning.taken, *returning.kept} if returning else set()
        replan = backup.mode == REPLAN
        barriers = {f"offsets/{id_}" for id_ in there.logs.barriers}
        strays = [
            path
            for path in list_removals(there, backup.first_batch, replan=replan)
            if path not in back | barriers
        ]
        if strays:
            backup = replace(
                backup,
                taken=tuple(dict.fromkeys((*backup.taken, *strays))),
                appeared=tuple(dict.fromkeys((*backup.appeared, *strays))),
            )
            write_backup(self._folder, backup)
            for path in strays:
                self._folder.move(path, backup_path(backup.id, TAKEN, path))
        return backup

    def _read_back(self, backup: Backup, returning: Backup | None) -> None:
        """See that what had to go is gone, that what had to come is there, and that it loads."""
        folder = self._folder
        back = {*returning.taken, *returning.kept} if returning else set()
        wrong = [path for path in backup.taken if path not in back and folder.exists(path)]
        wrong += [path for path in back if not folder.exists(path)]
        wrong += [
            path for path in backup.taken if not folder.exists(backup_path(backup.id, TAKEN, path))
        ]
        problems = [f"{path} is not where it should be" for path in wrong]
        if returning is None:
            chains = read_checkpoint(folder.url).chains(backup.first_batch)
            problems += [chain.problem for chain in chains.values() if chain.problem]
        if problems:
            raise CheckpointError(
                f"Reading {folder.url} back found: {problems[0]}.",
                f"Spark does not start on it. To go back: ebbtide undo {quote(folder.url)}",
            )

    def _lift_barrier(self, journal: Journal) -> None:
        path = f"offsets/{journal.barrier}"
        if (self._folder.read(path) or "").startswith(BARRIER):
            self._folder.remove(path)

    def _each(
        self, step: Callable[[str], None], paths: Sequence[str], *, in_order: bool = False
    ) -> None:
        """A step for every file; at once where the filesystem is slow, unless the order counts."""
        done = iter(range(1, len(paths) + 1))

        def counted(path: str) -> None:
            self._claimed.renew()
            step(path)
            self._on_file(next(done), len(paths))

        if in_order:
            for path in paths:
                counted(path)
        else:
            self._folder.map(counted, paths)


def _logs_or_state(paths: tuple[str, ...], logs: bool) -> list[str]:
    return [path for path in paths if path.startswith(LOGS) == logs]


def _main_logs(backup: Backup | None) -> list[str]:
    """The log entries of a backup, without their checksum files."""
    paths = (*backup.taken, *backup.kept) if backup else ()
    return [path for path in _logs_or_state(paths, logs=True) if path.rpartition("/")[2].isdigit()]


def _write_audit(folder: Folder, action: str, backup: Backup) -> None:
    """Add a line to the audit log: who, when, what, which plan; once, even if run again."""
    before = folder.read(AUDIT) or ""
    line = {
        "at": in_utc(datetime.now(timezone.utc)),
        "by": whoami(),
        "action": action,
        "first_batch": backup.first_batch,
        "mode": backup.mode,
        "last_batch": backup.last_batch,
        "backup": backup.id,
        "fingerprint": backup.fingerprint,
        "files": len(backup.taken),
        "vanished": len(backup.vanished),
        "appeared": len(backup.appeared),
        "sink": backup.sink and {**asdict(backup.sink), "files": len(backup.sink.files)},
        "query_id": backup.next_query_id or backup.query_id,
        "result": "done",
    }
    mark = f'"action": "{action}", '
    if not any(mark in said and backup.id in said for said in before.splitlines()[-1:]):
        # a line that was cut off stays as it is; ours begins on one of its own
        before += "\n" if before and not before.endswith("\n") else ""
        folder.write(AUDIT, before + json.dumps(line) + "\n")
