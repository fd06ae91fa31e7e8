"""The steps that change a checkpoint: those of a rewind and of an undo.

**1** lock; **2** read again, refuse if anything changed; **3** barrier: a log entry that Spark
refuses to read; **4** back up, by link, what an undo needs and Spark may clean up; **5** the sink;
**6** state, then operator metadata, by rename into the backup; **7** commits and offsets from the
top down, then the query's id; **8** read back and verify; **9** one audit line; **10** remove the
barrier, unlock.

In steps 5 to 7 of an undo, what an earlier backup holds comes back after the present has left: the
timelines are swapped. The sink comes first, because others may write to it: up to then nothing has
moved, so a failure is taken back. After that, a change that was interrupted is finished when it is
run again. On a disk, a step begins when the names of the one before are there for good: a power cut
must not take it back and keep a later one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from shlex import quote

from ebbtide.checkpoint import (
    Backup,
    Checkpoint,
    Journal,
    SinkChange,
    layout,
    read_checkpoint,
    read_logs,
)
from ebbtide.connectors import connector_of
from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path, remove_note
from ebbtide.parsing import parse_id
from ebbtide.rewind.backups import LOGS, METADATA
from ebbtide.rewind.journal import (
    BACK_UP,
    FINISH,
    SINK,
    SINK_BACK,
    VERIFY,
    write_audit,
    write_backup,
    write_barrier,
    write_journal,
    write_query_ids,
    write_timeline,
)
from ebbtide.rewind.lease import Claim, LeaseLostError
from ebbtide.rewind.plan import list_removals
from ebbtide.storage import WritableFolder

_STATE_AWAY, _STATE_BACK = "6 state away", "6 state back"
_LOGS_AWAY, _LOGS_BACK, _QUERY_ID = "7 logs away", "7 logs back", "7 query id"
Advance = Callable[[int, int], None]


class _StoppedError(CheckpointError):
    """Said on purpose, with its own way on."""


class CheckpointChange:
    """One rewind or undo, from the barrier to its removal."""

    def __init__(self, claimed: Claim, on_file: Advance) -> None:
        self._folder, self._claimed, self._on_file = claimed.writable, claimed, on_file
        self.read_back = True

    def start(
        self, backup: Backup, returning: Backup | None, target: str, flags: str = ""
    ) -> Backup:
        """Steps 3 to 10."""
        folder = self._folder
        ids = [*folder.ids("offsets"), *folder.ids("commits")]
        names = [path.rpartition("/")[2] for path in _all_files(returning) if path.startswith(LOGS)]
        ids += [id_ for name in names if (id_ := parse_id(name)) is not None]
        journal = Journal(
            action=backup.action,
            backup=backup.id,
            restores=returning.id if returning else None,
            first_batch=backup.first_batch,
            mode=backup.mode,
            target=target,
            barrier=max(ids, default=-1) + 1,
            phase=BACK_UP,
            flags=flags,
        )
        # before the barrier: later, only a working filesystem helps
        folder.probe()
        self._claimed.check()
        try:
            # 3
            write_journal(folder, journal)
            write_barrier(folder, journal)
            folder.sync()
            # 4
            self._claimed.check()
            self._each(lambda path: folder.link(path, backup.kept_path(path)), backup.kept)
            for path in METADATA if backup.next_query_id else ():
                if folder.exists(path):
                    folder.link(path, backup.query_path(path))
            folder.sync()
            write_backup(folder, backup)
        except LeaseLostError:
            raise
        except BaseException as error:
            try:
                self.take_back(journal)
            except Exception:
                raise journal.interrupted(folder.url) from error
            if not isinstance(error, Exception):
                raise
            raise CheckpointError(
                f"{folder.url} cannot be backed up: {_reason(error)}. It is as it was before.",
                "Make room or fix the permissions, then try again.",
            ) from error
        return self.go_on(replace(journal, phase=SINK))

    def take_back(self, journal: Journal) -> None:
        """Undo steps 3 and 4, and 5 where one of several sinks has refused."""
        stuck = self._revert_sinks(journal) if journal.phase == SINK_BACK else None
        if journal.phase != BACK_UP:  # without its backup, it cannot go on
            write_journal(self._folder, replace(journal, phase=BACK_UP))
        self._lift_barrier(journal)
        self._folder.remove_tree(f"{layout.BACKUPS}/{journal.backup}")
        self._end()
        if stuck is not None:
            raise stuck

    def take_back_sinks(self, journal: Journal) -> None:
        """Undo steps 3 to 5: sinks go back first, so that no file of theirs stays set aside."""
        journal = replace(journal, phase=SINK_BACK)
        write_journal(self._folder, journal)
        self.take_back(journal)

    def _revert_sinks(self, journal: Journal) -> CheckpointError | None:
        """Take back what was done to sinks before one refused; the problem, if one stays."""
        # it is gone already if only the end of the taking back is left
        if (backup := Backup.read(self._folder, journal.backup)) is None:
            return None
        returning = Backup.read(self._folder, journal.restores) if journal.restores else None
        problems = [self._revert_sink(change, backup, returning) for change in backup.sinks]
        return next(filter(None, problems), None)

    def _revert_sink(
        self, change: SinkChange, backup: Backup, returning: Backup | None
    ) -> CheckpointError | None:
        sink, coming = connector_of(change.kind).sink, returning and returning.of_sink(change)
        try:
            sink.revert(self._folder, change, backup.of_sink(change), coming)
        except CheckpointError as error:
            return _StoppedError(
                f"The checkpoint is as it was before, but {change.path} was restored already, and "
                f"that cannot be reverted: {error.problem}",
                sink.format_manual_return(change, backup),
            )
        return None

    def go_on(self, journal: Journal) -> Backup:
        """Steps 5 to 10, from where the journal says."""
        folder = self._folder
        backup = self._read(journal.backup)
        # it is gone already if only the end of step 10 is left
        returning = Backup.read(folder, journal.restores) if journal.restores else None
        steps: dict[str, Callable[[], None]] = {
            # 5
            SINK: lambda: self._change_sinks(journal, backup, returning),
            # 6
            _STATE_AWAY: lambda: self._take(backup, returning, logs=False),
            _STATE_BACK: lambda: self._restore(returning, logs=False),
            # 7
            _LOGS_AWAY: lambda: self._take(backup, returning, logs=True),
            _LOGS_BACK: lambda: self._restore(returning, logs=True),
            _QUERY_ID: lambda: self._change_query_id(backup, returning),
            # 8, 9
            VERIFY: lambda: self._conclude(journal, returning),
        }
        phases = [*steps, FINISH]
        if journal.phase not in phases:
            raise _unknown(folder, f"phase {journal.phase!r}")
        try:
            for phase in phases[phases.index(journal.phase) :]:
                journal = replace(journal, phase=phase)
                if phase == FINISH and not journal.after:
                    journal = replace(journal, after=read_logs(folder).digest)
                self._claimed.check()
                folder.sync()
                write_journal(folder, journal)
                folder.sync()
                if phase in steps:
                    steps[phase]()
            # 10
            self._lift_barrier(journal)
            if journal.restores:
                folder.remove_tree(f"{layout.BACKUPS}/{journal.restores}")
            self._end()
        except KeyboardInterrupt:
            raise KeyboardInterrupt(str(journal.interrupted(folder.url))) from None
        except (_StoppedError, LeaseLostError):
            raise
        except Exception as error:
            if isinstance(error.__context__, KeyboardInterrupt):  # a lock that the signal met
                raise KeyboardInterrupt(str(journal.interrupted(folder.url))) from None
            raise self._interrupted(journal, error) from error
        return self._read(journal.backup)

    def _interrupted(self, journal: Journal, error: Exception) -> CheckpointError:
        """What has stopped the change, how to finish it, and the other way out, if there is one."""
        url, interrupted = self._folder.url, journal.interrupted(self._folder.url)
        other = f" Or leave the sink as it is: ebbtide undo {quote(url)} --leave-sink"
        return CheckpointError(
            f"{interrupted.problem[:-1]}: {_reason(error)}. No file is lost, and Spark does not "
            "start on it.",
            interrupted.next_step + (other if journal.phase == SINK else ""),
        )

    def _change_sinks(self, journal: Journal, backup: Backup, returning: Backup | None) -> None:
        try:
            for change in backup.sinks:
                coming = returning.of_sink(change) if returning else None
                sink = connector_of(change.kind).sink
                sink.apply(self._folder, change, backup.of_sink(change), coming)
        except (OSError, LeaseLostError):
            raise
        except CheckpointError as error:
            # refused by a sink before it changed anything; those before it go back
            if len(backup.sinks) > 1:
                self.take_back_sinks(journal)
            else:
                self.take_back(journal)
            raise _StoppedError(
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

    def _take(self, backup: Backup, returning: Backup | None, *, logs: bool) -> None:
        folder, coming = self._folder, set(returning.taken if returning else ())

        def is_back(path: str) -> bool:
            """Whether under a name lies what has come back, no more what had to leave."""
            if returning is None or path not in coming:
                return False
            # an earlier version moved back what is now linked
            is_moved = bool(self._missing({path: returning.taken_path(path)}))
            return is_moved or folder.exists(backup.taken_path(path))

        def take(path: str) -> None:
            # moved before an interruption, or removed by somebody else: step 8 tells which
            with suppress(FileNotFoundError):
                if not is_back(path):
                    folder.move(path, backup.taken_path(path))

        self._each(take, _logs_or_state(backup.taken, logs), in_order=logs)
        if not logs and backup.first_batch == 0 and backup.mode == layout.REPLAN:
            folder.remove_empty("state")

    def _restore(self, returning: Backup | None, *, logs: bool) -> None:
        """Link back what a backup holds, which stays whole until the end: step 8 may need it."""
        if returning is None:
            return
        # the logs from the bottom up, as Spark would have written them
        paths = _logs_or_state(returning.taken, logs)[::-1]
        self._each(lambda path: self._put_back(returning, path), paths, in_order=logs)
        links = _logs_or_state(returning.kept, logs)
        self._each(lambda path: self._link_back(returning, path), links)

    def _put_back(self, returning: Backup, path: str) -> None:
        # an earlier version moved it; if it is lost, step 8 notes that
        with suppress(FileNotFoundError):
            self._folder.link(returning.taken_path(path), path)

    def _conclude(self, journal: Journal, returning: Backup | None) -> None:
        # 8: an earlier attempt may have added to the backup
        backup = self._read(journal.backup)
        backup = self._note_vanished(self._repeat(backup, returning), returning)
        if self.read_back:
            self._read_back(journal, backup, returning)
        # 9
        branched = backup.timeline.branch(backup.first_batch, backup.mode, backup.id)
        write_timeline(self._folder, returning.timeline if returning else branched)
        write_audit(self._folder, backup.action, backup)

    def _read(self, id_: str) -> Backup:
        self._folder.finish_write(note_path(Backup.note(id_)))
        backup = Backup.read(self._folder, id_)
        if backup is None:
            raise _unknown(self._folder, f"backup {id_}, which is not there")
        return backup

    def _repeat(self, backup: Backup, returning: Backup | None) -> Backup:
        """Do again what was missed, or what somebody else has meanwhile done or undone."""
        folder, present = self._folder, read_checkpoint(self._folder.url)
        coming = _all_files(returning)
        missed = [path for path in backup.taken if path not in coming and present.has(path)]
        for path in missed:
            with suppress(FileNotFoundError):
                folder.move(path, backup.taken_path(path))
        if returning is not None:
            for path in returning.taken:
                if not present.has(path):
                    self._put_back(returning, path)
        # what the first batch needs, and somebody else may have removed
        for path in (returning or backup).kept:
            if not present.has(path):
                self._link_back(returning or backup, path)
        return self._take_strays(backup, present, coming.union(missed))

    def _take_strays(self, backup: Backup, present: Checkpoint, expected: set[str]) -> Backup:
        """Take what somebody else wrote meanwhile: a late snapshot would leak its timeline."""
        expected |= {f"offsets/{id_}" for id_ in present.logs.barriers}
        replan = backup.mode == layout.REPLAN
        removals = list_removals(present, backup.first_batch, replan=replan)
        if strays := [path for path in removals if path not in expected]:
            backup = replace(
                backup,
                taken=tuple(dict.fromkeys((*backup.taken, *strays))),
                appeared=tuple(dict.fromkeys((*backup.appeared, *strays))),
            )
            write_backup(self._folder, backup)
            self._folder.sync()
            for path in strays:
                self._folder.move(path, backup.taken_path(path))
        return backup

    def _note_vanished(self, backup: Backup, returning: Backup | None) -> Backup:
        """Leave out what somebody else removed before it was taken, or after it came back."""
        lost = set(self._missing({path: backup.taken_path(path) for path in backup.taken}))
        gone = set(self._missing({path: path for path in _all_files(returning)}))
        if returning is not None and gone:
            held = {path: returning.taken_path(path) for path in returning.taken}
            held |= {path: returning.kept_path(path) for path in returning.kept}
            gone = set(self._missing({path: held[path] for path in gone}))
        if vanished := {*lost, *gone} - set(backup.vanished):
            taken = tuple(path for path in backup.taken if path not in lost)
            every = tuple(sorted({*backup.vanished, *vanished}))
            backup = replace(backup, taken=taken, vanished=every)
            write_backup(self._folder, backup)
        return backup

    def _missing(self, places: Mapping[str, str]) -> list[str]:
        """Which files are not in their places."""
        exists = self._folder.exists
        there = zip(places.items(), self._folder.map(exists, places.values()), strict=True)
        # asked twice: after a wrong answer a file would be left out of the backup for good
        return [path for (path, place), found in there if not found and not exists(place)]

    def _link_back(self, backup: Backup, path: str) -> None:
        if not self._folder.exists(path):
            with suppress(FileNotFoundError):  # step 8 notes it
                self._folder.link(backup.kept_path(path), path)

    def _read_back(self, journal: Journal, backup: Backup, returning: Backup | None) -> None:
        """See that what had to go is gone, that what had to come is there, and that it loads."""
        folder, coming = self._folder, _all_files(returning)
        wrong = [path for path in backup.taken if path not in coming and folder.exists(path)]
        wrong += self._missing({path: path for path in coming - set(backup.vanished)})
        problems = [f"{path} is not where it should be" for path in wrong]
        ways = [f"Stop what still changes it, then finish: {journal.command(folder.url)}"]
        if returning is None:
            chains = read_checkpoint(folder.url).chains(backup.first_batch)
            problems += [chain.problem for chain in chains.values() if chain.problem]
            ways.append(f"To go back: ebbtide undo {quote(folder.url)}")
        if problems:
            raise _StoppedError(
                f"Reading {folder.url} back found: {problems[0]}. Spark does not start on it.",
                ". ".join(ways[not wrong :]),
            )

    def _lift_barrier(self, journal: Journal) -> None:
        path = f"offsets/{journal.barrier}"
        if (self._folder.read(path) or "").startswith(layout.BARRIER):
            self._folder.sync()
            self._folder.remove(path)
            self._folder.sync()

    def _end(self) -> None:
        """Remove what only a change under way needs."""
        self._folder.remove_leftovers("", "offsets", "commits")
        self._folder.sync()
        remove_note(self._folder, layout.JOURNAL)

    def _each(
        self, step: Callable[[str], None], paths: Sequence[str], *, in_order: bool = False
    ) -> None:
        """A step for every file; at once where the filesystem is slow, unless the order counts."""
        done = iter(range(1, len(paths) + 1))

        def counted(path: str) -> None:
            step(path)
            self._on_file(next(done), len(paths))

        if in_order:
            for path in paths:
                counted(path)
        else:
            self._folder.map(counted, paths)


def _unknown(folder: WritableFolder, what: str) -> CheckpointError:
    return CheckpointError(
        f"{folder.path(note_path(layout.JOURNAL))} is damaged: it names the {what}.",
        "Restore it from a copy of the checkpoint.",
    )


def _reason(error: Exception) -> str:
    """What has failed, to go on within a sentence."""
    if isinstance(error, CheckpointError) and not isinstance(error, OSError):
        return error.problem.rstrip(".")
    if isinstance(error, OSError):
        return (error.strerror or str(error)).rstrip(".")
    return f"{type(error).__name__}: {error}"


def _logs_or_state(paths: tuple[str, ...], logs: bool) -> list[str]:
    return [path for path in paths if path.startswith(LOGS) == logs]


def _all_files(backup: Backup | None) -> set[str]:
    return {*backup.taken, *backup.kept} if backup else set()
