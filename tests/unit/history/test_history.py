"""The history's files: nothing is lost or doubled, whatever is cut; what it shows."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import pytest

from ebbtide.checkpoint import Timeline, read_checkpoint
from ebbtide.connectors.progress import LateRecords
from ebbtide.history import Entry, Output, kept_entries, read_history
from ebbtide.history import store as history
from ebbtide.history.store import HISTORY, write_entry, write_rebuilt
from ebbtide.notes import write_note
from ebbtide.parsing import MAX_BYTES
from ebbtide.rewind import RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import Folder, open_folder, open_writable
from tests.conftest import Cli
from tests.power import cut
from tests.trees import Shape, make


def entry(batch: int, timeline: str = "origin", **more: object) -> Entry:
    """Of a batch as `tests.trees` makes it: it ran for a second and a half."""
    offsets = json.dumps({"visits": {"0": batch, "1": 2 * batch}})
    known = {
        "started": f"2026-01-05T10:{batch:02d}:00.000Z",
        "ended": f"2026-01-05T10:{batch:02d}:01.500Z",
        "sources": (offsets,),
        "rows": 3,
        "broken": 1,
        "event_times": (
            f"2025-09-04T07:{batch:02d}:00.000000Z",
            f"2025-09-04T07:{batch:02d}:59.999999Z",
        ),
        "watermark": "2025-09-04T06:50:00.000Z",
        "durations": {"triggerExecution": 1500},
        "state": ({"operator": "stateStoreSave", "rows": 2},),
        "output": Output(2, "0123456789abcdef"),
        "versions": {"spark": "4.2.0"},
    }
    return Entry(batch, timeline, **known | more)  # type: ignore[arg-type]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folded every four entries, three segments kept."""
    monkeypatch.setattr(history, "FOLDED", 4)
    monkeypatch.setattr(history, "SEGMENTS", 3)


def batches(folder: Path) -> list[int]:
    return [entry.batch for entry in read_history(open_folder(str(folder))).entries]


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder / HISTORY))


def test_entries_come_back_as_they_were(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    assert read_history(folder).entries == ()
    written = [entry(0), entry(1, output=None, event_times=None, watermark=None, rebuilt=True)]
    for one in written:
        write_entry(folder, one)
    assert read_history(folder).entries == tuple(written)


@pytest.mark.usefixtures("small")
def test_files_are_folded_and_bounded(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    for batch in range(30):
        write_entry(folder, entry(batch))
        assert len(files(tmp_path)) <= 3 + 3, "at most three segments, three small files"
    assert batches(tmp_path) == list(range(16, 30))


@pytest.mark.usefixtures("small")
def test_a_cut_anywhere_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """The power is cut before each change of the write that folds, and drops a segment."""

    def before(folder: Path) -> None:
        for batch in range(15):
            write_entry(open_folder(str(folder)), entry(batch))

    def write(batch: int, folder: Folder) -> None:
        write_entry(folder, entry(batch))

    for n in range(100):
        folder = tmp_path / str(n)
        before(folder)
        was_cut = cut(folder, n, partial(write, 15))
        found = batches(folder)
        assert found in (list(range(15)), list(range(16)), list(range(4, 16))), n
        # run again, it goes on from whatever was left
        write(16, open_folder(str(folder)))
        assert batches(folder) == [*(b for b in found if b >= batches(folder)[0]), 16], n
        assert len(batches(folder)) >= 12
        if not was_cut:
            # the entry, the segment, four small files, the oldest segment
            assert n == 1 + 1 + 4 + 1
            return
    pytest.fail("it never ends")


@pytest.mark.usefixtures("small")
def test_a_reader_sees_what_is_folded_meanwhile(tmp_path: Path) -> None:
    """Between its look at the folder and at the files, the stream ends one batch more."""
    folder = open_folder(str(tmp_path))
    for number in range(history.FOLDED - 1):
        write_entry(folder, entry(number))

    class Late(Folder):
        def read_all(self, paths: Iterable[str], limit: int = MAX_BYTES) -> dict[str, str]:
            del limit
            if len(files(tmp_path)) > 1:
                write_entry(folder, entry(history.FOLDED - 1))
            return super().read_all(paths)

    late = Late(folder.url, folder.filesystem, folder.root)
    assert [one.batch for one in read_history(late).entries] == list(range(history.FOLDED))


def spoil_by_cutting(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def spoil_by_emptying(path: Path) -> None:
    path.write_text("[]\n")


def spoil_with_bytes(path: Path) -> None:
    path.write_bytes(b"\x00\xff\n")


@pytest.mark.parametrize("spoil", [spoil_by_cutting, spoil_by_emptying, spoil_with_bytes])
@pytest.mark.usefixtures("small")
def test_a_spoilt_file_is_named_and_the_rest_is_read(
    tmp_path: Path, spoil: Callable[[Path], None]
) -> None:
    folder = open_folder(str(tmp_path))
    for batch in range(6):
        write_entry(folder, entry(batch))
    single, segment = (
        tmp_path / HISTORY / files(tmp_path)[1],
        tmp_path / HISTORY / files(tmp_path)[0],
    )
    spoil(single)
    (tmp_path / HISTORY / "notes.txt").write_text("mine")
    found = read_history(folder)
    assert [e.batch for e in found.entries] == [0, 1, 2, 3, 5]
    assert found.strange == (f"{HISTORY}/notes.txt", f"{HISTORY}/{single.name}")
    # it is folded with the others, and spoils none of them
    for batch in range(6, 8):
        write_entry(folder, entry(batch))
    assert batches(tmp_path) == [0, 1, 2, 3, 5, 6, 7]
    segment.write_bytes(segment.read_bytes()[:-20])
    assert batches(tmp_path) == [0, 1, 2, 5, 6, 7]


def test_timelines_keep_their_own_entries(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape(batches=5))
    opened = open_folder(str(folder))
    for batch in range(5):
        write_entry(opened, entry(batch))
    apply_rewind(
        plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none")),
        assume_stopped=True,
    )
    rewound = Timeline.read(opened)
    assert sorted(read_history(opened).of(rewound)) == [0, 1, 2]
    write_entry(opened, entry(3, rewound.name, rows=9))
    found = read_history(opened).of(rewound)
    assert {batch: one.rows for batch, one in found.items()} == {0: 3, 1: 3, 2: 3, 3: 9}
    undo_rewind(str(folder), assume_stopped=True)
    found = read_history(opened).of(Timeline.read(opened))
    assert {batch: one.rows for batch, one in found.items()} == dict.fromkeys(range(5), 3)


def test_what_read_other_offsets_does_not_count(tmp_path: Path) -> None:
    """Somebody took the checkpoint back by hand, and Spark alone ran on: the logs know."""
    folder = make(tmp_path / "c", Shape(batches=3))
    opened = open_folder(str(folder))
    for batch in range(3):
        write_entry(opened, entry(batch, sources=('{"visits": {"1": 4, "0": 2}}',)))
    assert list(kept_entries(read_checkpoint(str(folder)))) == [2]
    # a join of a source with itself: two lines in the log, one in the progress
    log = folder / "offsets" / "2"
    log.write_text(f"{log.read_text()}\n{log.read_text().splitlines()[-1]}")
    assert list(kept_entries(read_checkpoint(str(folder)))) == [2]


def test_what_the_stream_saw_goes_before_what_was_rebuilt(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    write_entry(folder, entry(1))
    write_rebuilt(folder, [entry(0, rebuilt=True), entry(1, rebuilt=True)])
    write_rebuilt(folder, [entry(2, rebuilt=True), entry(0, rebuilt=True, rows=7)])
    found = read_history(folder).of(Timeline.read(folder))
    assert [(e.rebuilt, e.rows) for e in found.values()] == [(True, 7), (False, 3), (True, 3)]


def test_the_command(inside: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    folder = make(tmp_path / "c", Shape(batches=6, committed=5))
    opened = open_folder(str(folder))
    for batch in range(4):
        write_entry(opened, entry(batch))
    plan = plan_rewind(RewindRequest(str(folder), ToBatch(3), assume_stopped=True, remedy="none"))
    apply_rewind(plan, assume_stopped=True)
    name = Timeline.read(opened).name
    write_entry(opened, entry(3, name, rows=12_345, output=Output(0, "fedcba9876543210")))
    (folder / HISTORY / "notes.txt").write_text("mine")

    shown = inside("history", folder)
    lines = shown.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].split() == ["ran", "event", "times", "watermark"]
    assert lines[1].split() == [
        *("batch", "2026-01-05", "rows", "broken", "2025-09-04", "2025-09-04"),
        *("took", "out", "digest"),
    ]
    assert [line.split() for line in lines[3:5]] == [
        ["0", "10:00:00", "3", "1", "07:00:00", "06:50:00", "1.5", "s", "2", "012345"],
        ["07:00:59"],
    ]
    assert lines[9].split()[:3] == [">3", "10:03:00", "12,345"]
    assert f"> From batch 3 on, which kept its records: since a rewind ({name})." in shown.stderr
    assert "notes.txt is cut or not ours" in shown.stderr

    found = json.loads(inside("history", folder, "-o", "json", "--last", "2").stdout)
    assert [part["name"] for part in found["timeline"]] == ["origin", name]
    assert [batch["id"] for batch in found["batches"]] == [2, 3]
    assert found["batches"][0]["output"] == {"rows": 2, "digest": "0123456789abcdef"}
    assert found["batches"][1]["timeline"] == name


def test_the_command_shows_late_records(inside: Cli, tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape(batches=3))
    times = ("2025-09-04T07:00:00.000Z", "2025-09-04T07:10:00.000Z")
    late = (None, LateRecords(99_900, times=times), LateRecords(0))
    for batch, records in enumerate(late):
        write_entry(open_folder(str(folder)), entry(batch, late=records))
    shown = inside("history", folder)
    head = next(line for line in shown.stdout.splitlines() if "batch" in line).split()
    column = head.index("late")
    rows = [line.split() for line in shown.stdout.splitlines() if " s " in line]
    assert [row[column] for row in rows] == ["-", "99,900", "0"]
    assert "99,900 late records are missing" in shown.stderr
    assert "--event-time-end=2025-09-04T07:10:00" in shown.stderr


def test_the_command_without_a_history(inside: Cli, tmp_path: Path) -> None:
    """What the logs say, and how to learn more."""
    folder = make(tmp_path / "c", Shape(batches=3))
    shown = inside("history", folder)
    assert [line.split() for line in shown.stdout.splitlines()[3:6]] == [
        ["0", "00:00:01", "0", *"------"],
        ["1", "00:00:01", "3", "-", "-", "00:01:00", *"---"],
        ["2", "00:00:01", "3", "-", "-", "00:02:00", *"---"],
    ]
    assert (
        "Batches 0 to 2: no history. To read rows and event times from Kafka: "
        f"ebbtide history {folder} --rebuild --event-time-field NAME" in shown.stderr
    )
    assert not (folder / ".ebbtide").exists(), "a look changes nothing"
    unnamed = inside("history", folder, "--rebuild", "--home", tmp_path)
    assert (unnamed.returncode, "Add --event-time-field NAME" in unnamed.stderr) == (2, True)
    words = ("--rebuild", "--event-time-field", "at", "--home", tmp_path)
    refused = inside("history", folder, *words)
    assert refused.returncode == 1
    assert "broker is not running" in refused.stderr


def test_the_command_says_why_columns_are_empty(inside: Cli, tmp_path: Path) -> None:
    """In one line for each reason, with how to fill them."""
    folder = make(tmp_path / "c", Shape(batches=6))
    opened = open_folder(str(folder))
    write_rebuilt(opened, [entry(2, rebuilt=True, output=None)])
    write_entry(opened, entry(3))
    for batch in (4, 5):
        write_entry(opened, entry(batch, event_times=None, output=None))
    said = inside("history", folder).stderr.splitlines()
    assert [line.partition(".")[0] for line in said] == [
        "Batches 0 to 1: no history, which is kept since batch 2",
        "Batch 2: rebuilt afterwards, so what they wrote and how long they took is not known",
        "Batches 4 to 5: no event times, as the pipeline names no field",
        "Batches 4 to 5: no output or digest, as they are noted only for a batch that is read once",
    ]
    write_note(open_writable(str(folder)), "pipeline.json", {"pipeline": "q", "is_attached": True})
    attached = inside("history", folder).stderr
    assert "4 to 5: no event times, as ebbtide.attach saw no column of them" in attached
    assert "4 to 5: no output or digest, as ebbtide.attach does not see the rows" in attached
    assert attached.count("ebbtide.observe: docs/start/your-own-job.md") == 2


def test_nothing_is_rebuilt_from_kafka_where_the_source_is_another(
    inside: Cli, tmp_path: Path
) -> None:
    folder = make(tmp_path / "c", Shape(batches=3))
    for log in (folder / "offsets").glob("[0-9]"):
        version, meta, _ = log.read_text().split("\n")
        log.write_text("\n".join([version, meta, f'{{"logOffset":{log.name}}}']))
    said = inside("history", folder).stderr
    assert (
        "Batches 0 to 2: no history. To record the next ones, add ebbtide.attach to the job" in said
    )
    assert "--rebuild" not in said
    refused = inside("history", folder, "--rebuild", "--event-time-field", "at")
    assert refused.returncode == 1
    assert "does not read Kafka, and only from there can rows" in refused.stderr
    assert "broker" not in refused.stderr
