"""Write our notes about a change of a checkpoint: how far it is, its backup, the audit log."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import asdict, replace
from datetime import datetime, timezone

from ebbtide.checkpoint import Backup, Journal, Timeline, layout, read_logs
from ebbtide.errors import CheckpointError
from ebbtide.notes import note_path, remove_note, write_note, write_text
from ebbtide.processes import whoami
from ebbtide.storage import Folder, WritableFolder
from ebbtide.times import in_utc

BACK_UP, SINK, SINK_BACK = "4 back up", "5 sink", "5 sink back"
VERIFY, FINISH = "8 verify", "10 finish"
"""The phases of a change that decide how it is finished."""


def write_barrier(folder: WritableFolder, journal: Journal) -> None:
    """Keep Spark from starting: it prints the first line as its error, and reads no further.

    The second line names the backup, in case the journal is lost.
    """
    error = journal.interrupted(folder.url)
    text = f"{layout.BARRIER}{error.problem} {error.next_step}\n{journal.backup}\n"
    folder.write(f"offsets/{journal.barrier}", text)


def write_journal(folder: WritableFolder, journal: Journal) -> None:
    """Note a change and how far it is."""
    write_note(folder, layout.JOURNAL, asdict(journal))


def write_timeline(folder: WritableFolder, timeline: Timeline) -> None:
    """Note the timeline that the checkpoint is on."""
    write_note(folder, layout.TIMELINE, {"timeline": timeline.parts})


def write_backup(folder: WritableFolder, backup: Backup) -> None:
    """Describe a backup; from then on it counts."""
    write_note(folder, Backup.note(backup.id), backup.to_dict())


def write_query_ids(folder: WritableFolder, *ids: str) -> None:
    """Note that a query has these ids one after the other; backups may be pruned, this stays."""
    noted = Backup.noted_ids(folder)
    before = noted if set(noted) & set(ids) else ()
    if not set(ids) <= set(before):
        write_note(folder, layout.QUERY_IDS, {"ids": list(dict.fromkeys((*before, *ids)))})


def recover_journal(folder: WritableFolder) -> Journal | None:
    """Tell from the barrier and the newest backup what a lost or damaged journal said.

    None if no change is under way, or if there is not even a backup to tell it from.
    """
    folder.finish_write(note_path(layout.JOURNAL))
    with suppress(CheckpointError):
        if (journal := Journal.read(folder)) is not None:
            return journal
    if (barrier := Journal.read_barrier(folder)) is None:
        remove_note(folder, layout.JOURNAL)
        return None
    # earlier versions did not name it: then it is the newest
    id_ = barrier.backup or next(iter(folder.names(layout.BACKUPS)[-1:]), None)
    if id_ is None:
        return None
    folder.finish_write(note_path(Backup.note(id_)))
    backup = Backup.read(folder, id_)
    action = "undo" if "-undo-to-" in id_ else "rewind"
    journal = Journal(action, id_, None, 0, layout.EXACT, "", barrier.id, BACK_UP)
    if backup is not None:
        is_done = f'"backup": "{backup.id}"' in (folder.read(note_path(layout.AUDIT)) or "")
        journal = replace(
            journal,
            action=backup.action,
            restores=_find_restored(folder, backup),
            first_batch=backup.first_batch,
            mode=backup.mode,
            target=f"--to-batch {backup.first_batch}",
            # each step after it may be repeated
            phase=FINISH if is_done else SINK,
            after=read_logs(folder).digest if is_done else "",
        )
    write_journal(folder, journal)
    return journal


def _find_restored(folder: Folder, backup: Backup) -> str | None:
    """The backup that an undo brings back; earlier versions did not note it."""
    if backup.action != "undo" or backup.restores is not None:
        return backup.restores
    others = [Backup.read(folder, id_) for id_ in folder.names(layout.BACKUPS)]
    cut = (backup.first_batch, backup.mode)
    fitting = [
        other.id
        for other in others
        if other and other.id != backup.id and (other.first_batch, other.mode) == cut
    ]
    if len(fitting) != 1:
        raise CheckpointError(
            f"{folder.path(note_path(layout.JOURNAL))} is damaged, and an undo was interrupted: of "
            f"{len(fitting)} backups it cannot be told which one it brought back.",
            "Restore the checkpoint from a copy.",
        )
    return fitting[0]


def write_audit(folder: WritableFolder, action: str, backup: Backup) -> None:
    """Add a line to the audit log: who, when, what, which plan; once, even if run again."""
    before = folder.read(note_path(layout.AUDIT)) or ""
    sinks = [{**asdict(change), "files": len(change.files)} for change in backup.sinks]
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
        "sink": next(iter(sinks), None),
        "sinks": sinks,
        "query_id": backup.next_query_id or backup.query_id,
        "result": "done",
    }
    mark = f'"action": "{action}", '
    if not any(mark in last and backup.id in last for last in before.splitlines()[-1:]):
        # a line that was cut off stays as it is; ours begins on one of its own
        before += "\n" if before and not before.endswith("\n") else ""
        write_text(folder, layout.AUDIT, before + json.dumps(line) + "\n")
