"""Write our notes about a change of a checkpoint: how far it is, its backup, the audit log."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime, timezone

from ebbtide.checkpoint import Backup, Journal, Timeline, layout
from ebbtide.notes import note_path, write_note, write_text
from ebbtide.processes import whoami
from ebbtide.storage import Folder, WritableFolder
from ebbtide.times import in_utc


def barrier_line(journal: Journal, folder: Folder) -> str:
    """What Spark prints as its error when it meets an unfinished change."""
    error = journal.interrupted(folder.url)
    return f"{layout.BARRIER}{error.problem} {error.next_step}"


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
