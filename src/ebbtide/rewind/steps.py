"""The steps that change a checkpoint: those of a rewind and of an undo.

**1** lock; **2** read again, refuse if anything changed; **3** barrier: a log entry that Spark
refuses to read; **4** back up, by link, what an undo needs and Spark may clean up; **5** the sink;
**6** state, then operator metadata, by rename into the backup; **7** commits and offsets from the
top down, then the query's id; **8** read back and verify; **9** one audit line; **10** remove the
barrier, unlock.

In steps 5 to 7 of an undo, what an earlier backup holds comes back after the present has left: the
timelines are swapped. The sink comes first, because others may write to it: up to then nothing has
moved, so a failure is taken back. After that, a change that was interrupted is finished when it is
run again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote

from ebbtide.checkpoint import Backup, Journal, layout, read_checkpoint, read_logs
from ebbtide.connectors import connector_of
from ebbtide.errors import CheckpointError
from ebbtide.notes import remove_note
from ebbtide.rewind.backups import LOGS, METADATA
from ebbtide.rewind.journal import (
    barrier_line,
    write_audit,
    write_backup,
    write_journal,
    write_query_ids,
    write_timeline,
)
from ebbtide.rewind.lease import Claim
from ebbtide.rewind.plan import list_removals
from ebbtide.storage import WritableFolder

BACK_UP, VERIFY, FINISH = "4 back up", "8 verify", "10 finish"
_SINK, _STATE_AWAY, _STATE_BACK = "5 sink", "6 state away", "6 state back"
_LOGS_AWAY, _LOGS_BACK, _QUERY_ID = "7 logs away", "7 logs back", "7 query id"
Advance = Callable[[int, int], None]


class CheckpointChange:
    """One rewind or undo, from the barrier to its removal."""

    def __init__(self, folder: WritableFolder, claimed: Claim, on_file: Advance) -> None:
        self._folder, self._claimed, self._on_file = folder, claimed, on_file
        self.read_back = True

    def start(self, backup: Backup, returning: Backup | None, target: str) -> Backup:
        """Steps 3 to 10."""
        folder = self._folder
        ids = [*folder.ids("offsets"), *folder.ids("commits")]
        names = [path.rpartition("/")[2] for path in _all_files(returning) if path.startswith(LOGS)]
        ids += [int(name) for name in names if name.isdigit()]
        journal = Journal(
            action=backup.action,
            backup=backup.id,
            restores=returning.id if returning else None,
            first_batch=backup.first_batch,
            mode=backup.mode,
            target=target,
            barrier=max(ids, default=-1) + 1,
            phase=BACK_UP,
        )
        try:
            # 3
            write_journal(folder, journal)
            folder.write(f"offsets/{journal.barrier}", barrier_line(journal, folder) + "\n")
            # 4
            self._each(lambda path: folder.link(path, backup.kept_path(path)), backup.kept)
            for path in METADATA if backup.next_query_id else ():
                if folder.exists(path):
                    folder.link(path, backup.query_path(path))
            write_backup(folder, backup)
        except OSError as error:
            try:
                self.take_back(journal)
            except OSError:
                raise journal.interrupted(folder.url) from None
            raise CheckpointError(
                f"{folder.url} cannot be backed up: {error.strerror or error}. "
                "It is as it was before.",
                "Make room or fix the permissions, then try again.",
            ) from None
        return self.go_on(replace(journal, phase=_SINK))

    def take_back(self, journal: Journal) -> None:
        """Undo steps 3 and 4: nothing has moved yet."""
        self._lift_barrier(journal)
        self._folder.remove_tree(f"{layout.BACKUPS}/{journal.backup}")
        remove_note(self._folder, layout.JOURNAL)

    def go_on(self, journal: Journal) -> Backup:
        """Steps 5 to 10, from where the journal says."""
        folder = self._folder
        backup = self._read(journal.backup)
        # it is gone already if only the end of step 10 is left
        returning = Backup.read(folder, journal.restores) if journal.restores else None
        steps: dict[str, Callable[[], None]] = {
            # 5
            _SINK: lambda: self._change_sink(journal, backup, returning),
            # 6
            _STATE_AWAY: lambda: self._take(backup, logs=False),
            _STATE_BACK: lambda: self._restore(returning, logs=False),
            # 7
            _LOGS_AWAY: lambda: self._take(backup, logs=True),
            _LOGS_BACK: lambda: self._restore(returning, logs=True),
            _QUERY_ID: lambda: self._change_query_id(backup, returning),
            # 8, 9
            VERIFY: lambda: self._conclude(backup, returning),
        }
        phases = [*steps, FINISH]
        try:
            for phase in phases[phases.index(journal.phase) :]:
                journal = replace(journal, phase=phase)
                if phase == FINISH and not journal.after:
                    journal = replace(journal, after=read_logs(folder).digest)
                write_journal(folder, journal)
                if phase in steps:
                    steps[phase]()
            # 10
            self._lift_barrier(journal)
            if journal.restores:
                folder.remove_tree(f"{layout.BACKUPS}/{journal.restores}")
            remove_note(folder, layout.JOURNAL)
        except OSError as error:
            interrupted = journal.interrupted(folder.url)
            raise CheckpointError(
                f"{interrupted.problem[:-1]}: {error.strerror or error}. No file is lost, and "
                "Spark does not start on it.",
                interrupted.next_step,
            ) from None
        return self._read(journal.backup)

    def _change_sink(self, journal: Journal, backup: Backup, returning: Backup | None) -> None:
        if (change := backup.sink) is None:
            return
        try:
            with self._claimed.renewing():
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
        write_query_ids(folder, backup.query_id, backup.next_query_id)
        if folder.exists(checksum):
            folder.remove(checksum)
        folder.write(metadata, json.dumps({"id": backup.next_query_id}, separators=(",", ":")))
        if returning is not None and folder.exists(saved := returning.query_path(checksum)):
            folder.link(saved, checksum)

    def _take(self, backup: Backup, *, logs: bool) -> None:
        def take(path: str) -> None:
            # moved before an interruption, or removed by somebody else: step 8 tells which
            with suppress(FileNotFoundError):
                if self._folder.exists(path):
                    self._folder.move(path, backup.taken_path(path))

        self._each(take, _logs_or_state(backup.taken, logs), in_order=logs)
        if not logs and backup.first_batch == 0 and backup.mode == layout.REPLAN:
            self._folder.remove_empty("state")

    def _restore(self, returning: Backup | None, *, logs: bool) -> None:
        if returning is None:
            return

        def restore(path: str) -> None:
            if self._folder.exists(taken := returning.taken_path(path)):
                self._folder.move(taken, path)

        # the logs from the bottom up, as Spark would have written them
        self._each(restore, _logs_or_state(returning.taken, logs)[::-1], in_order=logs)
        links = _logs_or_state(returning.kept, logs)
        self._each(lambda path: self._link_back(returning, path), links)

    def _conclude(self, backup: Backup, returning: Backup | None) -> None:
        # 8: an earlier attempt may have added to the backup
        backup = self._read(backup.id)
        if returning is None:
            for path in backup.kept:  # somebody else may have removed it
                self._link_back(backup, path)
        backup = self._take_strays(self._note_vanished(backup), returning)
        if self.read_back:
            self._read_back(backup, returning)
        # 9
        branched = backup.timeline.branch(backup.first_batch, backup.mode, backup.id)
        write_timeline(self._folder, returning.timeline if returning else branched)
        write_audit(self._folder, backup.action, backup)

    def _read(self, id_: str) -> Backup:
        backup = Backup.read(self._folder, id_)
        assert backup is not None
        return backup

    def _note_vanished(self, backup: Backup) -> Backup:
        """Leave out what was neither moved by us nor left where it was."""
        folder = self._folder
        moved = folder.map(folder.exists, [backup.taken_path(path) for path in backup.taken])
        both = zip(backup.taken, moved, strict=True)
        if vanished := {
            path for path, is_moved in both if not is_moved and not folder.exists(path)
        }:
            taken = tuple(path for path in backup.taken if path not in vanished)
            backup = replace(backup, taken=taken, vanished=tuple(sorted(vanished)))
            write_backup(folder, backup)
        return backup

    def _link_back(self, backup: Backup, path: str) -> None:
        if not self._folder.exists(path):
            self._folder.link(backup.kept_path(path), path)

    def _take_strays(self, backup: Backup, returning: Backup | None) -> Backup:
        """Take what somebody else wrote meanwhile: a late snapshot would leak its timeline."""
        present = read_checkpoint(self._folder.url)
        expected = {f"offsets/{id_}" for id_ in present.logs.barriers} | _all_files(returning)
        replan = backup.mode == layout.REPLAN
        removals = list_removals(present, backup.first_batch, replan=replan)
        if strays := [path for path in removals if path not in expected]:
            backup = replace(
                backup,
                taken=tuple(dict.fromkeys((*backup.taken, *strays))),
                appeared=tuple(dict.fromkeys((*backup.appeared, *strays))),
            )
            write_backup(self._folder, backup)
            for path in strays:
                self._folder.move(path, backup.taken_path(path))
        return backup

    def _read_back(self, backup: Backup, returning: Backup | None) -> None:
        """See that what had to go is gone, that what had to come is there, and that it loads."""
        folder = self._folder
        back = _all_files(returning)
        wrong = [path for path in backup.taken if path not in back and folder.exists(path)]
        wrong += [path for path in back if not folder.exists(path)]
        wrong += [path for path in backup.taken if not folder.exists(backup.taken_path(path))]
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
        if (self._folder.read(path) or "").startswith(layout.BARRIER):
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


def _all_files(backup: Backup | None) -> set[str]:
    return {*backup.taken, *backup.kept} if backup else set()
