"""Event times out of order over many batches: the batch that is chosen, and what is counted."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.checkpoint import read_checkpoint
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import KafkaConnection, Record
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.history import fill_gaps, kept_entries
from ebbtide.history.event_times import (
    choose,
    count_records,
    find_first_batch,
    straddling,
    total,
)
from ebbtide.history.store import write_entry
from ebbtide.storage import open_folder
from tests.conftest import Cli
from tests.inside import MEMORY
from tests.trees import Shape, make
from tests.unit.history.test_history import entry

Offsets = Mapping[int, int]
MORNING = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
SECONDS = st.integers(-120, 120)
BATCHES = st.lists(st.lists(SECONDS | st.none(), max_size=6), min_size=1, max_size=8)


def at(seconds: int) -> datetime:
    return MORNING + timedelta(seconds=seconds)


@given(batches=BATCHES, wanted=SECONDS)
def test_the_last_batch_from_which_no_event_is_missed(
    batches: list[list[int | None]], wanted: int
) -> None:
    """Against the truth by force: try every batch, look at every event."""
    times_of_records = (
        (number, None if time is None else at(time))
        for number, times in enumerate(batches)
        for time in times
    )
    tallies = count_records(times_of_records, at(wanted))

    def missed(first: int) -> int:
        before = [time for times in batches[:first] for time in times]
        return sum(time is not None and time >= wanted for time in before)

    found = choose(tallies, at(wanted))
    if found is None:
        assert missed(len(batches)) == 0
        return
    assert missed(found) == 0
    assert all(missed(later) > 0 for later in range(found + 1, len(batches) + 1))
    older = {
        number: sum(time is not None and time < wanted for time in times)
        for number, times in enumerate(batches)
    }
    again = {number: count for number, count in older.items() if number >= found and count}
    assert straddling(tallies, at(wanted), found) == sorted(again)
    assert {n: t.older for n, t in tallies.items() if t.older and n >= found} == again
    assert total(tallies, "records") == sum(map(len, batches))
    assert total(tallies, "without") == sum(times.count(None) for times in batches)


def checkpoint(tmp_path: Path, spans: list[tuple[int, int] | None]) -> Path:
    """Batch n+1 with the earliest and the latest second of its event times; batch 0 is empty."""
    folder = make(tmp_path / "c", Shape(batches=len(spans) + 1))
    for number, span in enumerate(spans, start=1):
        times = None if span is None else tuple(at(s).isoformat() for s in span)
        if span is None or span[0] <= span[1]:
            broken = 3 if span is None else 0
            one = entry(number, event_times=times, rows=3, broken=broken)
            write_entry(open_folder(str(folder)), one)
    return folder


def find(folder: Path, wanted: int, **more: object) -> tuple[int, str]:
    known = {"field": None, "connection": None, "zone": "UTC"}
    return find_first_batch(read_checkpoint(str(folder)), at(wanted), **known | more)  # type: ignore[arg-type]


THREE = st.lists(SECONDS | st.none(), min_size=3, max_size=3)


@settings(max_examples=30)
@given(batches=st.lists(THREE, min_size=1, max_size=5), wanted=SECONDS)
def test_the_history_chooses_the_same_batch(batches: list[list[int | None]], wanted: int) -> None:
    """From what it keeps of each batch, against every event."""
    events = [[time for time in times if time is not None] for times in batches]
    with tempfile.TemporaryDirectory(dir=MEMORY) as place:
        folder = checkpoint(Path(place), [(min(e), max(e)) if e else None for e in events])
        with_one = [
            n for n, times in enumerate(events, start=1) if max(times, default=-999) >= wanted
        ]
        if not with_one:
            with pytest.raises(CheckpointError, match="No record since batch 0"):
                find(folder, wanted)
            return
        batch, said = find(folder, wanted)
    assert batch == with_one[0]
    older = any(time < wanted for times in events[batch - 1 :] for time in times)
    assert ("run again too" in said) == older


def test_the_history_is_enough(tmp_path: Path) -> None:
    # the third is late: all its three records are older; the second had none that could be read
    folder = checkpoint(tmp_path, [(0, 9), None, (2, 8), (11, 20), (-30, 9), (15, 40)])
    # neither a broker nor the name of a field
    batch, said = find(folder, 40)
    assert batch == 6
    assert said == (
        "the first batch with such a record (from the history); "
        "older records run again too, back to 2025-09-04T07:00:15.000Z, in batch 6"
    )
    batch, said = find(folder, 11)
    assert batch == 4
    assert said == (
        "the first batch with such a record (from the history); "
        "3 records older than that run again too, in batch 5"
    )
    with pytest.raises(CheckpointError, match="No record since batch 0 has an event time from"):
        find(folder, 41)


def test_what_the_history_lacks_takes_kafka(tmp_path: Path) -> None:
    lacking = (1, 0)
    folder = checkpoint(tmp_path, [(0, 9), lacking, lacking, (10, 20)])
    with pytest.raises(
        EbbtideError, match=r"event times of batches 2 to 3\. .* --event-time-field"
    ):
        find(folder, 15)
    with pytest.raises(
        EbbtideError, match=r"batches 2 to 3, and there is no broker .* --bootstrap-servers"
    ):
        find(folder, 15, field="event_time")
    # what comes after a batch with such a record does not change the choice
    batch, said = find(folder, 5)
    assert batch == 1
    assert said.endswith("in batch 1; the history has no entries of batches 2 to 3")


def test_records_that_kafka_has_lost_are_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers of a broker whose partition 1 begins in the midst of batch 3."""
    folder = make(tmp_path / "c", Shape(batches=7))

    def consume(_servers: str, topic: str, first: Offsets, last: Offsets) -> Iterator[Record]:
        for partition in first:
            for offset in range(first[partition], last[partition]):
                time = at(offset if partition == 1 else 0).isoformat()
                value = json.dumps({"at": time}).encode()
                yield Record(topic, partition, offset, 0, None, value)

    monkeypatch.setattr(kafka, "retained_offsets", lambda *_: {0: (0, 6), 1: (5, 12)})
    monkeypatch.setattr(kafka, "consume_range", consume)
    known = {"field": "at", "connection": KafkaConnection("localhost:1")}
    # of batches 1 and 2 all is gone, of batch 3 only the record of second 4
    for wanted, last in ((5, 2), (6, 3)):
        with pytest.raises(
            CheckpointError, match=rf"all records of batches 1 to {last},.*--to-batch"
        ):
            find(folder, wanted, **known)
    # what the history knows need not be held
    for number in (1, 2, 3):
        times = tuple(at(second).isoformat() for second in (0, 2 * number - 1))
        write_entry(open_folder(str(folder)), entry(number, event_times=times, broken=0))
    assert [find(folder, wanted, **known)[0] for wanted in (4, 6)] == [3, 4]


def test_batches_that_are_gone_are_named(tmp_path: Path) -> None:
    """Their entries outlive them: that they read such records too must not be kept quiet."""
    folder = checkpoint(tmp_path, [(0, 90), (0, 9), (20, 30), (20, 30)])
    for log in ("offsets", "commits"):
        for number in range(3):
            (folder / log / str(number)).unlink()
            (folder / log / f".{number}.crc").unlink()
    batch, said = find(folder, 25)
    assert batch == 4
    assert said.endswith("batches 1 and 3 read such records too, but cannot run again")


def test_the_command_finds_it_without_a_broker(inside: Cli, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path, [(0, 9), (10, 19), (20, 30)])
    flags = ("--to-event-time", "2025-09-04T07:00:20", "--assume-stopped", "--home", tmp_path)
    shown = inside("rewind", folder, *flags, "--sink", "none")
    assert shown.returncode == 0, shown.stderr
    assert "to batch 3 (event time 2025-09-04T07:00:20.000Z" in shown.stderr
    assert "from the history" in shown.stderr


def reads_files(folder: Path, *log_offsets: int) -> Path:
    """Let a checkpoint's batches read files instead, up to these ids of their log."""
    for number, offset in enumerate(log_offsets):
        file = folder / "offsets" / str(number)
        head = file.read_text().splitlines()[:2]
        file.write_text("\n".join([*head, f'{{"logOffset":{offset}}}']))
        (folder / "offsets" / f".{number}.crc").unlink(missing_ok=True)
        for path in (folder / ".ebbtide" / "history").glob("*.jsonl"):
            one = json.loads(path.read_text())
            if one["batch"] == number:
                path.write_text(json.dumps(one | {"sources": [f'{{"logOffset":{offset}}}']}))
    return folder


def test_a_batch_that_a_killed_run_did_not_record_counts(tmp_path: Path) -> None:
    """Files cannot be asked for the event times of a batch that was committed, then lost."""
    lost = (1, 0)
    folder = checkpoint(tmp_path, [(0, 9), lost, (20, 29), (30, 39)])
    reads_files(folder, 0, 1, 2, 3, 4)
    early = (at(-60).isoformat(), at(-50).isoformat())
    first = entry(0, sources=('{"logOffset":0}',), event_times=early)
    write_entry(open_folder(str(folder)), first)
    assert find(folder, 5)[0] == 1
    for seconds in (15, 25, 50):
        batch, said = find(folder, seconds)
        assert batch == 2, "it may hold such a record"
        assert said.startswith("a run that was killed left no event times of batch 2")


def test_a_batch_that_was_recorded_without_event_times_is_not_guessed(tmp_path: Path) -> None:
    """No run was killed there: the query did not tell, and may never have."""
    folder = reads_files(checkpoint(tmp_path, [(0, 9), (1, 0), (20, 29)]), 0, 1, 2, 3)
    store = open_folder(str(folder))
    for number, times in ((0, (at(-60).isoformat(), at(-50).isoformat())), (2, None)):
        sources = (f'{{"logOffset":{number}}}',)
        write_entry(store, entry(number, sources=sources, event_times=times))
    with pytest.raises(CheckpointError, match=r"event times of batch 2"):
        find(folder, 15)


def test_batches_before_the_first_event_times_are_not_guessed(tmp_path: Path) -> None:
    """Nobody followed the query then."""
    folder = reads_files(checkpoint(tmp_path, [(1, 0), (20, 29), (30, 39)]), 0, 1, 2, 3)
    with pytest.raises(CheckpointError, match=r"event times of batches 0 to 1"):
        find(folder, 15)


def test_a_batch_of_files_without_new_ones_needs_no_event_times(tmp_path: Path) -> None:
    empty = (1, 0)
    folder = reads_files(checkpoint(tmp_path, [(0, 9), empty, (20, 29)]), 0, 1, 1, 2)
    early = (at(-60).isoformat(), at(-50).isoformat())
    first = entry(0, sources=('{"logOffset":0}',), event_times=early)
    write_entry(open_folder(str(folder)), first)
    batch, said = find(folder, 15)
    assert (batch, said) == (3, "the first batch with such a record (from the history)")


def test_files_without_any_history_are_not_guessed(tmp_path: Path) -> None:
    nothing = (1, 0)
    folder = reads_files(checkpoint(tmp_path, [nothing, nothing, (20, 29)]), 0, 1, 2, 3)
    with pytest.raises(CheckpointError, match="does not read Kafka, so the event times of"):
        find(folder, 15)


def test_gaps_are_filled_from_the_logs_and_later_from_kafka(tmp_path: Path) -> None:
    """A killed run left nothing of batch 2; what is known of others stays."""
    folder = checkpoint(tmp_path, [(0, 9), (1, 0), (20, 29)])
    contents = read_checkpoint(str(folder))
    write_entry(open_folder(str(folder)), entry(0, rows=0))
    before = kept_entries(contents)
    assert list(before) == [0, 1, 3]
    (filled,) = fill_gaps(contents)
    assert (filled.batch, filled.rebuilt, filled.event_times) == (2, True, None)
    assert filled.rows == contents.logs.records(contents.logs.by_id[2])
    after = kept_entries(contents)
    assert list(after) == [0, 1, 2, 3]
    assert {id_: after[id_] for id_ in before} == dict(before)
    assert fill_gaps(contents) == []
