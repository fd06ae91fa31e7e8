"""Records into files of an hour each, in the two steps of a batch, without Spark."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from ebbtide.archive import hours
from ebbtide.archive.hours import HourSteps
from ebbtide.archive.layout import PACKED, RAW
from ebbtide.times import EPOCH


@pytest.fixture
def steps(tmp_path: Path) -> HourSteps:
    return HourSteps.of(str(tmp_path), "visits", "4.2.0")


def raw(times: Sequence[str | None], first: int = 0) -> Any:
    """Records with these event times, as Spark passes them on."""
    count = len(times)
    micros = [
        None if at is None else (datetime.fromisoformat(at) - EPOCH) // timedelta(microseconds=1)
        for at in times
    ]
    columns = [
        pa.array(micros, pa.int64()),
        pa.array([1] * count, pa.int32()),
        pa.array(range(first, first + count), pa.int64()),
        pa.array([EPOCH + timedelta(seconds=n) for n in range(count)], pa.timestamp("us", "UTC")),
        pa.array([b"\xff"] * count, pa.binary()),
        pa.array([b"{}" + b" " * 50] * count, pa.binary()),
        pa.array([["k"][: 1 - n % 2] for n in range(count)], pa.list_(pa.string())),
        pa.array([[None][: 1 - n % 2] for n in range(count)], pa.list_(pa.binary())),
    ]
    return pa.record_batch(columns, list(RAW))


def write(steps: HourSteps, packed: list[Any]) -> list[dict[str, Any]]:
    """The second step as the shuffle feeds it."""
    batches = pa.Table.from_batches(packed).sort_by("hour").to_batches()
    added = [line for batch in steps.write(iter(batches)) for line in batch["added"].to_pylist()]
    return [json.loads(line)["add"] for line in added]


def read(steps: HourSteps, file: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = (
        pq.ParquetFile(Path(steps.files.folder, file["path"])).read().to_pylist()
    )
    return rows


def test_one_file_an_hour_with_what_delta_notes_of_it(steps: HourSteps) -> None:
    times = ["2025-09-04T07:59:59.999999+00:00", "2025-09-04T08:00:00+00:00"]
    times += ["1969-12-31T23:00:00.000900+00:00", "2025-09-04T07:00:00.001500+00:00"]
    times += ["9999-12-31T23:59:59+00:00"]
    packed = list(steps.split(iter([raw(times)])))
    assert all(batch.schema.names == [*PACKED] for batch in packed)
    files = {file["path"].rpartition("/")[0]: file for file in write(steps, packed)}
    assert files.keys() == {
        "event_day=1969-12-31/event_hour=23",
        "event_day=2025-09-04/event_hour=7",
        "event_day=2025-09-04/event_hour=8",
        "event_day=9999-12-31/event_hour=23",
    }
    seven = files["event_day=2025-09-04/event_hour=7"]
    assert seven["partitionValues"] == {"event_day": "2025-09-04", "event_hour": "7"}
    assert seven["size"] == Path(steps.files.folder, seven["path"]).stat().st_size
    at = {"event_time": "2025-09-04T07:00:00.001Z", "timestamp": "1970-01-01T00:00:00.000Z"}
    upto = {"event_time": "2025-09-04T07:59:59.999Z", "timestamp": "1970-01-01T00:00:03.000Z"}
    assert json.loads(seven["stats"]) == {
        "numRecords": 2,
        "minValues": {**at, "partition": 1, "offset": 0},
        "maxValues": {**upto, "partition": 1, "offset": 3},
        "nullCount": {"event_time": 0, "partition": 0, "offset": 0, "timestamp": 0},
    }
    first = read(steps, seven)[0]
    assert first["event_time"] == datetime.fromisoformat(times[0])
    assert (first["topic"], first["offset"], first["key"]) == ("visits", 0, b"\xff")
    assert first["headers"] == [{"key": "k", "value": None}]
    assert [row["headers"] for row in read(steps, seven)[1:]] == [None]
    assert (str(first["event_day"]), first["event_hour"]) == ("2025-09-04", 7)


def test_rows_without_event_time_have_a_file_of_their_own(steps: HourSteps) -> None:
    times = [None, None, "2025-09-04T07:00:00+00:00", None]
    files = write(steps, list(steps.split(iter([raw(times), raw([None] * 3)]))))
    assert sorted(json.loads(file["stats"])["numRecords"] for file in files) == [1, 6]
    null = next(file for file in files if file["partitionValues"]["event_day"] is None)
    assert null["partitionValues"] == {"event_day": None, "event_hour": None}
    assert "event_day=__HIVE_DEFAULT_PARTITION__/event_hour=__HIVE_DEFAULT" in null["path"]
    assert "event_time" not in json.loads(null["stats"])["minValues"]
    assert json.loads(null["stats"])["nullCount"]["event_time"] == 6
    assert {(row["event_time"], row["event_hour"]) for row in read(steps, null)} == {(None, None)}


def test_memory_is_bounded_and_nothing_lost(
    steps: HourSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large hour is written at once, others go on as chunks; each record is in one file."""
    monkeypatch.setattr(hours, "_MEMORY", 40_000)
    monkeypatch.setattr(hours, "_LARGE", 30_000)
    monkeypatch.setattr(hours, "_CHUNK", 2_000)
    times = [f"2025-09-04T{7 if n % 10 else n % 24:02d}:00:00+00:00" for n in range(2_000)]
    batches = [raw(times[n : n + 100], n) for n in range(0, 2_000, 100)]
    packed = list(steps.split(iter(batches)))
    at_once = [line for batch in packed for line in batch["added"].to_pylist() if line]
    assert len(at_once) > 1
    chunks = [value for batch in packed for value in batch["chunk"].to_pylist() if value]
    assert len(chunks) > 24
    files = write(steps, packed)
    assert {json.loads(line)["add"]["path"] for line in at_once} < {file["path"] for file in files}
    rows = [row for file in files for row in read(steps, file)]
    assert sorted(row["offset"] for row in rows) == list(range(2_000))
    assert all(row["event_time"].hour == row["event_hour"] for row in rows)


def test_as_many_hours_as_records_take_no_longer_each() -> None:
    """As with event times of many years; before, each hour was compared with all others."""
    buffers, rows = hours.HourBuffers(), raw([None])
    for hour in range(60_000):
        buffers.add(hour, rows)
    began = time.process_time()
    kept = 10_000 * rows.nbytes
    assert len(list(buffers.pop_largest(kept))) == 50_000
    assert buffers.bytes == kept
    assert len(list(buffers.pop_largest(-1))) == 10_000
    assert time.process_time() - began < 5


def test_a_few_late_records_do_not_keep_their_batches_in_memory() -> None:
    times = [f"2025-09-04T{6 if n == 50 else 7:02d}:00:00+00:00" for n in range(100)]
    batch = raw(times)
    alone = dict(hours._split(np.array([6 if n == 50 else 7 for n in range(100)]), batch))
    assert [row["offset"] for row in alone[6].to_pylist()] == [50]
    assert alone[6].get_total_buffer_size() < batch.get_total_buffer_size() / 10


def test_a_timestamp_of_the_producer_may_be_any(steps: HourSteps) -> None:
    batch = raw(["2025-09-04T07:00:00+00:00"])
    micros_as_millis = pa.array([1_757_000_000_000_000_000], pa.timestamp("us", "UTC"))
    batch = batch.set_column(3, "timestamp", micros_as_millis)
    (file,) = write(steps, list(steps.split(iter([batch]))))
    statistics = json.loads(file["stats"])
    assert statistics["minValues"].keys() == {"event_time", "partition", "offset"}
    assert statistics["nullCount"]["timestamp"] == 0
    stored = pq.ParquetFile(Path(steps.files.folder, file["path"])).read()
    assert stored["timestamp"].combine_chunks() == micros_as_millis


def test_an_empty_batch_writes_nothing(steps: HourSteps, tmp_path: Path) -> None:
    packed = list(steps.split(iter([raw([])])))
    assert sum(batch.num_rows for batch in packed) == 0
    assert not list(steps.write(iter([])))
    assert not list(tmp_path.iterdir())


def test_an_archive_needs_pyarrow_only_to_write_files_itself() -> None:
    """Without it, Delta's sink writes them."""
    without = "import sys; sys.modules['pyarrow'] = sys.modules['numpy'] = None; "
    code = f"{without}from ebbtide.archive import run_archive"
    subprocess.run([sys.executable, "-c", code], check=True)
