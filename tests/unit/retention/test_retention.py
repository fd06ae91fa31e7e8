"""Until when a batch can run again: the limits, each by itself, and what they leave together."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.checkpoint import Checkpoint, Owner, read_checkpoint
from ebbtide.connectors.base import Limit, RetentionRequest
from ebbtide.connectors.delta.log import open_table
from ebbtide.connectors.delta.retention import limit_by_sink, limit_by_source
from ebbtide.notes import write_note
from ebbtide.retention.limits import (
    limit_by_checkpoint,
    read_windows,
)
from ebbtide.retention.window import Window, combine
from ebbtide.rewind import fork
from ebbtide.storage import open_folder
from ebbtide.times import EPOCH
from tests.conftest import Cli
from tests.trees import Shape, make

NOW = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
MINUTE = timedelta(minutes=1)
QUERY = "7b3c"

limits = st.lists(
    st.builds(
        Limit,
        st.sampled_from(["checkpoint", "kafka", "delta"]),
        st.none() | st.integers(-9, 9).map(lambda n: NOW + n * MINUTE),
        st.booleans(),
        st.none() | st.none() | st.just("it aged"),
    ),
    max_size=6,
)


@given(limits)
def test_no_limit_is_passed_over(known: list[Limit]) -> None:
    window = combine(known)
    ends = [limit.until for limit in known if limit.until is not None]
    gone = [limit for limit in known if limit.gone]
    assert window.open is not bool(gone)
    if gone:
        assert (window.until, window.closes_first) == (None, gone[0].keeper)
    else:
        assert window.until == min(ends, default=None)
        closers: list[str | None] = [
            limit.keeper for limit in known if limit.until and limit.until == window.until
        ]
        assert window.closes_first in (closers or [None])


@given(limits, limits)
def test_one_more_limit_never_opens_a_window_further(known: list[Limit], more: list[Limit]) -> None:
    before, after = combine(known), combine([*known, *more])
    if not before.open:
        assert after == before
    elif after.open and before.until is not None:
        assert after.until is not None
        assert after.until <= before.until


@given(limits)
def test_the_order_of_the_limits_does_not_matter(known: list[Limit]) -> None:
    there, back = combine(known), combine(known[::-1])
    assert (there.open, there.until, there.estimate) == (back.open, back.until, back.estimate) or (
        not there.open and not back.open
    )


def test_without_a_limit_no_end_is_in_sight() -> None:
    assert combine([Limit("kafka")]) == Window()


# the checkpoint


def paced(folder: Path, shape: Shape, minutes: float = 1) -> Checkpoint:
    """A checkpoint whose batches were planned so many minutes apart."""
    make(folder, shape)
    for n in range(shape.first, shape.first + shape.batches):
        file = folder / "offsets" / str(n)
        version, meta, *sources = file.read_text().split("\n")
        planned = 1_760_000_000_000 + int(n * minutes * 60_000)
        meta = json.dumps(json.loads(meta) | {"batchTimestampMs": planned})
        file.write_text("\n".join([version, meta, *sources]))
    return read_checkpoint(str(folder))


def minutes_left(found: object) -> float:
    assert isinstance(found, Limit)
    assert found.until is not None
    return (found.until - NOW) / MINUTE


def test_a_checkpoint_that_was_never_cleaned_up_keeps_a_hundred_batches(tmp_path: Path) -> None:
    found = limit_by_checkpoint(paced(tmp_path, Shape(batches=30)), NOW)
    assert list(found) == list(range(30))
    # batch 29 is the last; batch 0 goes with the hundredth, batch 29 so many batches later
    assert [minutes_left(found[batch]) for batch in (0, 29)] == [71, 100]
    assert all(limit.estimate for limit in found.values())


def test_a_checkpoint_that_was_cleaned_up_keeps_as_many_as_it_holds(tmp_path: Path) -> None:
    found = limit_by_checkpoint(paced(tmp_path, Shape(batches=21, first=50), minutes=2), NOW)
    # 50 to 70 are there, and 51 is the first that has one before it: the next batch closes it
    assert list(found) == list(range(51, 71))
    assert [minutes_left(found[batch]) for batch in (51, 70)] == [2, 40]


def test_a_fork_begins_with_few_batches_and_keeps_a_hundred(tmp_path: Path) -> None:
    paced(tmp_path / "c", Shape("hdfs", batches=40))
    fork.fork_checkpoint(str(tmp_path / "c"), str(tmp_path / "f"), 30)
    found = limit_by_checkpoint(read_checkpoint(str(tmp_path / "f")), NOW)
    assert minutes_left(found[30]) == 100


def test_the_pace_is_that_of_the_last_batches(tmp_path: Path) -> None:
    checkpoint = paced(tmp_path, Shape(batches=40))
    file = tmp_path / "offsets" / "0"
    file.write_text(file.read_text().replace("17600000", "10600000"))  # years before the others
    found = limit_by_checkpoint(read_checkpoint(str(tmp_path)), NOW)
    assert minutes_left(found[39]) == minutes_left(limit_by_checkpoint(checkpoint, NOW)[39]) == 100


def test_one_batch_has_no_pace(tmp_path: Path) -> None:
    assert limit_by_checkpoint(paced(tmp_path, Shape(batches=1)), NOW) == {}


# Delta as a source: versions 0 to 5, each read by the batch of its number


@pytest.fixture
def table(tmp_path: Path) -> Path:
    kept = {
        "delta.logRetentionDuration": "interval 30 days",
        "delta.deletedFileRetentionDuration": "interval 7 days",
    }
    for n in range(6):
        write_deltalake(
            tmp_path / "t",
            pa.table({"n": [n]}),
            mode="append",
            configuration=kept,
            commit_properties=CommitProperties(
                app_transactions=[Transaction(QUERY, n)] if n % 2 else []
            ),
        )
        written = (NOW + n * MINUTE).timestamp()
        os.utime(tmp_path / "t" / "_delta_log" / f"{n:020}.json", (written, written))
    return tmp_path / "t"


@pytest.fixture
def reader(tmp_path: Path, table: Path) -> Checkpoint:
    """Batch n reads what version n added; the query began with the table as it was made."""
    make(tmp_path / "c", Shape(batches=6))
    for n in range(6):
        offset = {
            "sourceVersion": 1,
            "reservoirId": str(DeltaTable(table).metadata().id),
            "reservoirVersion": n + 1,
            "index": -1,
            "isStartingVersion": False,
        }
        meta = {"batchWatermarkMs": 0, "batchTimestampMs": 0, "conf": {}}
        file = tmp_path / "c" / "offsets" / str(n)
        file.write_text(f"v1\n{json.dumps(meta)}\n{json.dumps(offset)}")
    return read_checkpoint(str(tmp_path / "c"))


def asked(checkpoint: Checkpoint, now: datetime) -> RetentionRequest:
    return RetentionRequest(checkpoint, {}, None, now)


def days_after(limit: Limit, start: datetime) -> float:
    assert limit.until is not None
    return round((limit.until - start) / timedelta(days=1), 3)


def test_a_version_stays_in_the_log_as_long_as_it_is_told_to(
    reader: Checkpoint, table: Path
) -> None:
    found = open_table(str(table))
    assert found is not None
    kept = limit_by_source(asked(reader, NOW), found)
    assert [days_after(kept[n], NOW + n * MINUTE) for n in range(6)] == [30] * 6


def test_a_file_that_was_taken_out_stays_for_a_week(reader: Checkpoint, table: Path) -> None:
    DeltaTable(table).delete("n = 3")
    (removed,) = (
        json.loads(line)["remove"]
        for line in (table / "_delta_log" / f"{6:020}.json").read_text().splitlines()
        if '"remove"' in line
    )
    at = EPOCH + timedelta(milliseconds=removed["deletionTimestamp"])
    found = open_table(str(table))
    assert found is not None
    early = limit_by_source(asked(reader, at), found)
    # batches 0 to 3 read that file, and its week ends before, or after, the log's 30 days
    days = [days_after(early[n], at) for n in range(4)]
    log = [
        round((NOW + n * MINUTE + timedelta(days=30) - at) / timedelta(days=1), 3) for n in range(6)
    ]
    assert days == [min(7, left) for left in log[:4]]
    assert [days_after(early[n], at) for n in (4, 5)] == log[4:]
    # and once a vacuum took it, they are over
    (table / removed["path"]).unlink()
    late = limit_by_source(asked(reader, at + timedelta(days=8)), found)
    assert [limit.gone is None for limit in late.values()] == [False] * 4 + [True] * 2
    assert late[0].gone == f"{table} was vacuumed: {removed['path']} is gone"


def test_a_version_that_is_cleaned_from_the_log_closes_the_window(
    reader: Checkpoint, table: Path
) -> None:
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{2:020}.json").unlink()
    found = open_table(str(table))
    assert found is not None
    kept = limit_by_source(asked(reader, NOW), found)
    assert [limit.gone is None for limit in kept.values()] == [False] * 3 + [True] * 3


def test_a_sink_can_be_brought_back_to_before_a_batch(tmp_path: Path, table: Path) -> None:
    """Batches 1, 3 and 5 wrote versions 1, 3 and 5; another writer the others."""
    checkpoint = paced(tmp_path / "c", Shape(batches=7))
    found = open_table(str(table))
    assert found is not None
    kept = limit_by_sink(asked(checkpoint, NOW), found)
    assert sorted(kept) == [0, 1, 2, 3, 4, 5]
    # version 0 for batch 1 and those before it, version 2 for 2 and 3, version 4 for 4 and 5
    after = [days_after(kept[n], NOW) for n in range(6)]
    assert after == [round(30 + n / 1440, 3) for n in (0, 0, 2, 2, 4, 4)]


# all together, and what a person sees


def test_the_runner_note_leads_to_the_tables(reader: Checkpoint, table: Path) -> None:
    owner = Owner(source={"kind": "delta", "path": str(table)})
    windows = read_windows(reader, owner, None, now=NOW)
    assert {window.closes_first for window in windows.by_batch.values()} == {"delta"}
    assert windows.remarks == ()
    assert windows.oldest == 0
    lost = read_windows(reader, Owner(source={"kind": "delta", "path": str(table / "no")}), None)
    assert {window.closes_first for window in lost.by_batch.values()} == {None}


def test_inspect_says_until_when(tmp_path: Path, inside: Cli) -> None:
    paced(tmp_path / "c", Shape(batches=21, first=50))
    answer = inside("inspect", tmp_path / "c")
    assert "How long Kafka keeps the records is not known: add --bootstrap" in answer.stderr
    assert "The oldest batch that can run again is 51; the checkpoint closes it first" in (
        answer.stderr
    )
    assert "51 to 70" in answer.stdout
    found = json.loads(inside("inspect", tmp_path / "c", "-o", "json").stdout)
    assert found["oldest_replayable"] == 51
    last = found["batches"][-1]
    assert (last["closes_first"], last["estimate"], last["replayable"]) == (
        "checkpoint",
        True,
        True,
    )
    assert last["replayable_until"].endswith("Z")
    # what cannot run again anyway has no window
    assert (found["batches"][0]["replayable"], found["batches"][0]["replayable_until"]) == (
        False,
        None,
    )


def test_a_stopped_query_has_no_deadline(tmp_path: Path, inside: Cli) -> None:
    """Spark cleans up only while it runs."""
    paced(tmp_path / "c", Shape(batches=21, first=50))
    for path in tmp_path.rglob("*"):
        os.utime(path, (0, 0))
    answer = inside("inspect", tmp_path / "c")
    assert "until" not in answer.stdout
    assert "The oldest batch that can run again is 51; no end is in sight" in answer.stderr
    assert "stopped or idle: the checkpoint loses no batch until it runs on" in answer.stderr
    found = json.loads(inside("inspect", tmp_path / "c", "-o", "json").stdout)
    assert found["oldest_replayable"] == 51
    assert {batch["replayable_until"] for batch in found["batches"]} == {None}
    assert {batch["closes_first"] for batch in found["batches"]} == {None}


def test_what_runs_out_by_itself_is_said_of_a_stopped_query(
    reader: Checkpoint, table: Path
) -> None:
    owner = Owner(source={"kind": "delta", "path": str(table)})
    windows = read_windows(reader, owner, None, now=NOW, stopped=True)
    assert {window.closes_first for window in windows.by_batch.values()} == {"delta"}
    assert all(window.until for window in windows.by_batch.values())


def test_inspect_does_not_wait_for_a_broker(tmp_path: Path, inside: Cli) -> None:
    paced(tmp_path / "c", Shape())
    answer = inside("inspect", tmp_path / "c", "--bootstrap-servers", "127.0.0.1:1")
    assert answer.returncode == 0
    assert "No Kafka broker answers at 127.0.0.1:1" in answer.stderr
    assert "How long Kafka keeps the records is not known" in answer.stderr


def test_inspect_shows_what_delta_has_let_go(reader: Checkpoint, table: Path, inside: Cli) -> None:
    write_note(
        open_folder(reader.location),
        "pipeline.json",
        {"source": {"kind": "delta", "path": str(table)}},
    )
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{2:020}.json").unlink()
    answer = inside("inspect", reader.location)
    assert "Batches 0 to 2 cannot run again: the log of" in answer.stderr
    assert "The oldest batch that can run again is 3; Delta closes it first" in answer.stderr
