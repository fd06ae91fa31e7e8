"""Our own notes: journal, backups, leases, timeline, history, sinks, runs, and the rest."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from unittest.mock import patch

from ebbtide.checkpoint import Backup, Journal, Owner, SinkChange, Timeline, layout
from ebbtide.config import Settings
from ebbtide.connectors import Output
from ebbtide.connectors.progress import LateRecords
from ebbtide.connectors.streams import OutputPosition
from ebbtide.history import metrics
from ebbtide.history.store import Entry, read_history
from ebbtide.history.time_axis import fit_time_axis
from ebbtide.notes import LastMode, RunMode, encode, read_lines, read_note
from ebbtide.processes import machine
from ebbtide.reprocessing import EventTimeRange, ReprocessRun, list_runs, load_run
from ebbtide.reprocessing.diff import ResultChange, ResultDiff
from ebbtide.reprocessing.events import RangeRequested, SparkStarting, read_event
from ebbtide.reprocessing.journal import ChunkReport
from ebbtide.reprocessing.ranges import Chunk
from ebbtide.rewind import holders, lease
from ebbtide.rewind.journal import BACK_UP, recover_journal
from ebbtide.rewind.sinks import KnownSinks
from ebbtide.storage import Folder, open_folder, open_writable
from ebbtide.times import parse_time
from tests.fuzz.target import Target, scratch, to_text

_TAKEN = SinkChange("delta", "/t", 3, 2, "app", 5, 4, ("a/b",), ("_spark_metadata/1",))
_BACKUP = Backup(
    *("b1", "rewind", "2026-01-05T10:00:00.000Z", "ann@host", "7b3c", 2, "exact", 4),
    Timeline().branch(2, "exact", "b0"),
    *(("offsets/3", "state/0/0/4.delta"), ("state/0/0/2.delta",), 500, "f0"),
    next_query_id="8c4d",
    sinks=(_TAKEN,),
    location="/c",
)
_JOURNAL = Journal("rewind", "b1", None, 2, "exact", "--to-batch 2", 9, BACK_UP, "--sink none", "d")
_ENTRY = Entry(
    *(3, "origin", "2026-01-05T10:00:00.000Z", "2026-01-05T10:00:03.250Z", ('{"v":{"0":5}}', None)),
    rows=5,
    broken=1,
    event_times=("2026-01-05T09:00:00.000Z", "2026-01-05T09:59:00.000Z"),
    watermark="2026-01-05T08:50:00.000Z",
    lag=7,
    durations={"triggerExecution": 250, "addBatch": 200},
    state=({"operator": "stateStoreSave", "rows": 4, "updated": 2, "late": 0, "bytes": 900},),
    output=Output(4, "ab12"),
    late=LateRecords(2, False, ("2026-01-05T09:00:00.000Z", "2026-01-05T10:00:00.000Z")),
    versions={"spark": "4.2.0"},
    output_mode="append",
)


def _in_notes(
    name: str, note: str, read: Callable[[Folder], object], *others: tuple[str, str]
) -> Target:
    """A target that is one of the notes of a checkpoint; `others` are those beside it."""
    target = f"note-{name}"

    def run(data: bytes) -> None:
        root = scratch() / target
        if not root.exists():
            for path, text in (("metadata", '{"id":"7b3c"}'), ("offsets/5", "v1\n{}"), *others):
                _write(root / path, text.encode())
        # a note counts only where it was made
        here = json.dumps(str(root)).encode()
        _write(root / ".ebbtide" / note, data.replace(b'"/c"', here))
        read(open_folder(str(root)))

    return Target(target, lambda: _SEEDS[name], run)


def _write(file: Path, data: bytes) -> None:
    try:
        file.write_bytes(data)
    except FileNotFoundError:
        file.parent.mkdir(parents=True)
        file.write_bytes(data)


def _to_json(*values: object) -> list[bytes]:
    return [json.dumps(value).encode() for value in values]


def _read_journal(folder: Folder) -> None:
    journal = Journal.read(folder)
    if journal is not None:
        journal.interrupted(folder.url)


def _read_backup(folder: Folder) -> None:
    backup = Backup.read(folder, "b1")
    if backup is not None:
        backup.to_dict()
        assert not any(".." in path.split("/") for path in (*backup.taken, *backup.kept))
        _ = backup.sink, backup.fits(Timeline()), backup.taken_path("x")
        Backup.query_ids(folder, "7b3c")


def _read_barrier(folder: Folder) -> None:
    Journal.read_barrier(folder)


def _recover(data: bytes) -> None:
    """A journal that is damaged, and a barrier."""
    root = scratch() / "recover"
    for path, content in (
        ("metadata", b'{"id":"7b3c"}'),
        ("offsets/9", data),
        (".ebbtide/change.json", b"{"),
        (".ebbtide/backups/b1/backup.json", _SEEDS["backup"][0]),
    ):
        _write(root / path, content)
    recover_journal(open_writable(str(root)))


def _read_timeline(folder: Folder) -> None:
    timeline = Timeline.read(folder)
    _ = timeline.name, timeline.rewinds, timeline.owner_of(3)
    timeline.branch(4, "exact", "b9")


def _read_owner(folder: Folder) -> None:
    owner = Owner.read(folder)
    owner.to_dict()
    KnownSinks.read(folder).check_unknown(folder.url)


def _read_sinks(folder: Folder) -> None:
    known = KnownSinks.read(folder)
    known.check_unknown(folder.url)
    known.with_remedy(None)


def _read_leases(folder: Folder) -> None:
    # half a lease is read again a little later, twenty times: here nobody writes the rest
    with patch.object(holders, "_ATTEMPTS", 1):
        leases = holders.read_leases(folder)
        lease.read_lease(folder)
    for held in leases:
        held.holder()
        held.is_ending()
        held.to_note()
        held.is_held(0.0)


def _read_entries(folder: Folder) -> None:
    history = read_history(folder)
    entries = list(history.of(Timeline()).values())
    metrics.count(entries)
    metrics.rate(entries)
    fit_time_axis(entries)
    for entry in entries:
        metrics.duration(entry)
        metrics.watermark_delay(entry)
        metrics.state_size(entry, "rows")


def _read_run(data: bytes) -> None:
    """What a run has to do, and in the second line how a chunk of it ended."""
    run, _, chunk = data.partition(b"\n")
    place, settings = scratch() / "home" / "runs" / "r-visits-1", Settings(home=scratch() / "home")
    _write(place / "run.json", run)
    _write(place / "chunk-0001.json", chunk)
    list_runs(settings, "visits", 5)
    found = load_run(settings, place.name)
    _ = found.retry_line, found.words(settings)


def _read_event(data: bytes) -> None:
    read_event(to_text(data)).lines()


_LEASE = holders.Lease(
    socket.gethostname(),
    ((4_000_000, 1.5), (1, 7.0)),
    1.7e9,
    location="/c",
    machine=machine(),
    token="ab12",
    renewals=3,
)
_OWNER = {
    "pipeline": "visits-counter",
    "event_time": "event_time",
    "source": {"kind": "kafka", "name": "visits", "topic_ids": [["ab", 0], ["cd", 3]]},
    "sink": {"kind": "files", "name": "out", "path": "/out"},
    "location": "/c",
}
_ASKED = EventTimeRange(parse_time("2026-01-05T10:00:00"), parse_time("2026-01-05T11:00:00"))
_RUN = ReprocessRun(
    *("r-visits-1", "visits", "jobs:visits", "UTC", _ASKED, _ASKED, (Chunk(1, _ASKED, _ASKED),)),
    *(5, "windows", OutputPosition({0: 7}, None, None)),
    flags=("--home", "/h"),
)
_DIFFERENT = ChunkReport(
    *(1, "failed"),
    diff=ResultDiff(
        {"new": 1}, (ResultChange("new", None, None, {"n": 5}),), (("2026", 1.5, None),)
    ),
    error="no space left",
)
_SEEDS: dict[str, list[bytes]] = {
    "journal": _to_json(asdict(_JOURNAL), asdict(replace(_JOURNAL, action="undo", restores="b0"))),
    "backup": _to_json(_BACKUP.to_dict(), replace(_BACKUP, sinks=()).to_dict()),
    "timeline": _to_json({"timeline": Timeline().branch(5, "replan", "b1").parts}),
    "owner": _to_json(_OWNER, {"pipeline": None, "is_attached": True}),
    "query-ids": _to_json({"ids": ["7b3c", "8c4d"]}),
    "sinks": _to_json(
        {"location": "/c", "sinks": [{"kind": "delta", "name": "t", "path": "/t"}]},
    ),
    "mode": _to_json(LastMode(RunMode.REAL_TIME, 5)._asdict()),
    "lease": _to_json(_LEASE.to_note(), replace(_LEASE, machine=None, token="").to_note()),
    "old-lease": _to_json(replace(_LEASE, machine=None, token="").to_note()),
    "renewal": _to_json(
        asdict(holders.Renewal("ab12", ((1, 2.0),), 1.7e9, 4)),
    ),
    "history": [f"{_ENTRY.to_json()}\n{replace(_ENTRY, batch=4).to_json()}\n".encode()],
    "audit": [b'{"at":"2026","by":"ann@host","action":"rewind","backup":"b1"}\n{"at"'],
    "fork": _to_json({"first_batch": 3, "origin": "/o", "at_batch": 3}),
}

TARGETS = (
    _in_notes("journal", layout.JOURNAL, _read_journal),
    _in_notes("backup", "backups/b1/backup.json", _read_backup),
    _in_notes("timeline", layout.TIMELINE, _read_timeline),
    _in_notes("owner", layout.OWNER, _read_owner),
    _in_notes("query-ids", layout.QUERY_IDS, lambda folder: Backup.query_ids(folder, "7b3c")),
    _in_notes("sinks", layout.SINKS, _read_sinks),
    _in_notes("mode", "mode.json", LastMode.read),
    _in_notes("lease", "leases/3.json", _read_leases),
    _in_notes("old-lease", "lease.json", _read_leases),
    _in_notes(
        *("renewal", "leases/3.renewed.json", _read_leases),
        (".ebbtide/leases/3.json", _SEEDS["lease"][0].decode()),
    ),
    _in_notes("history", "history/000000000001.jsonl", _read_entries),
    _in_notes("audit", layout.AUDIT, lambda folder: read_lines(folder, layout.AUDIT)),
    _in_notes("fork", layout.FORK, lambda folder: read_note(folder, layout.FORK)),
    Target(
        "note-barrier",
        lambda: [
            b"ebbtide: A rewind to batch 2 of /c was interrupted. Finish it: ebbtide x\nb1\n",
            b"v1\n{}",
        ],
        _recover,
    ),
    Target(
        "run",
        lambda: [
            encode(_RUN).encode() + b"\n" + encode(ChunkReport(1, "done", 5, 0, 4, 4)).encode(),
            encode(_RUN).encode() + b"\n" + encode(_DIFFERENT).encode(),
        ],
        _read_run,
    ),
    Target(
        "event",
        lambda: [
            SparkStarting().to_json().encode(),
            RangeRequested("visits-counter", _ASKED, "Europe/Warsaw").to_json().encode(),
            b'{"event":"ErrorRaised","problem":"p","next_step":"n","exit_code":2}',
        ],
        _read_event,
        (ValueError,),
    ),
)
