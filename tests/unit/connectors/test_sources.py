"""What a plan finds out about sources: Delta tables and files, real ones, without a JVM."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake

from ebbtide import Delta, Files
from ebbtide.checkpoint import read_checkpoint
from ebbtide.checks import Check
from ebbtide.config import Settings
from ebbtide.connectors import check_sources
from ebbtide.connectors.base import Replayed
from ebbtide.connectors.delta.log import open_table
from ebbtide.connectors.delta.source import DeltaOffset, find_range
from ebbtide.connectors.kafka.records import Topic
from ebbtide.connectors.kafka.source import check_kafka
from ebbtide.notes import read_note
from ebbtide.runtime.ownership import claim
from ebbtide.storage import open_folder
from tests.trees import build
from tests.unit.test_pipeline import PIPELINE

BEFORE_ALL = -1


def with_sources(folder: Path, *offsets: object) -> Path:
    """A checkpoint whose batches have these offsets, one source each."""
    build(folder, len(offsets), len(offsets))
    for n, offset in enumerate(offsets):
        meta = {"batchWatermarkMs": 0, "batchTimestampMs": 1_000 + n, "conf": {}}
        (folder / "offsets" / str(n)).write_text(f"v1\n{json.dumps(meta)}\n{json.dumps(offset)}")
    return folder


# Delta: versions 0 to 5 with one row each; the query began with the rows of version 1


@pytest.fixture
def table(tmp_path: Path) -> Path:
    for n in range(6):
        add_row(tmp_path / "table", n)
    return tmp_path / "table"


def add_row(table: Path, n: int) -> None:
    write_deltalake(
        table,
        pa.table({"n": [n], "day": [f"day {n % 2}"]}),
        mode="append",
        partition_by=["day"],
        configuration={"delta.logRetentionDuration": "interval 0 days"},
    )


def at(table: Path, version: int, index: int = BEFORE_ALL, *, snapshot: bool = False) -> object:
    return {
        "sourceVersion": 1,
        "reservoirId": str(DeltaTable(table).metadata().id),
        "reservoirVersion": version,
        "index": index,
        "isStartingVersion": snapshot,
    }


def four_batches(folder: Path, table: Path) -> Path:
    """One file of the two with which it began, the other, versions 2 and 3, versions 4 and 5."""
    ends = (at(table, 1, 0, snapshot=True), at(table, 2), at(table, 4), at(table, 6))
    return with_sources(folder, *ends)


Judge = Callable[[int], Check]


@pytest.fixture
def judge(tmp_path: Path, table: Path) -> Judge:
    """What a plan says of the table for a first batch."""
    checkpoint = four_batches(tmp_path / "c", table)

    def of(batch: int, path: Path | None = table) -> Check:
        noted = {"kind": "delta", "path": str(path)} if path else None
        (check,) = check_sources(read_checkpoint(str(checkpoint)), batch, noted).checks
        return check

    return of


def file_of(table: Path, version: int) -> Path:
    (entry,) = (table / "_delta_log").glob(f"{version:020}.json")
    (add,) = (line for line in entry.read_text().splitlines() if '"add"' in line)
    return table / unquote(json.loads(add)["add"]["path"])


def test_a_table_that_is_whole(judge: Judge, table: Path) -> None:
    said = [judge(batch) for batch in range(4)]
    assert {check.verdict for check in said} == {"ok"}
    assert [check.detail.removeprefix(f"{table} holds ") for check in said] == [
        "version 1 and what versions 2 to 5 added",
        "version 1 and what versions 2 to 5 added",
        "what versions 2 to 5 added",
        "what versions 4 to 5 added",
    ]


def test_a_file_of_the_range_that_is_gone_is_named(judge: Judge, table: Path) -> None:
    file_of(table, 4).unlink()
    assert [judge(batch).verdict for batch in range(4)] == ["refuse"] * 4
    assert f"{table} was vacuumed: day=day" in judge(3).detail
    assert file_of(table, 4).name in judge(3).detail


def test_a_file_from_before_the_range_is_not_missed(judge: Judge, table: Path) -> None:
    file_of(table, 2).unlink()
    assert [judge(batch).verdict for batch in range(4)] == ["refuse"] * 3 + ["ok"]


def test_of_the_first_rows_only_what_was_not_read_is_needed(judge: Judge, table: Path) -> None:
    """Batch 0 read the first of the two files with which the query began."""
    file_of(table, 0).unlink()
    assert [judge(batch).verdict for batch in (0, 1)] == ["refuse", "ok"]
    file_of(table, 1).unlink()
    assert judge(1).verdict == "refuse"


def test_files_of_a_clone_lie_where_their_own_path_says(table: Path, tmp_path: Path) -> None:
    found = open_table(str(table))
    assert found is not None
    file = quote(str(file_of(table, 1)))
    here = [f"file:{file}", f"file://{file}", file]
    gone = f"file:{tmp_path}/gone.parquet"
    assert found.missing([*here, gone]) == [gone]


def test_what_vacuum_takes_is_seen(judge: Judge, table: Path) -> None:
    """Merging files takes them out of the table; only the vacuum makes them go."""
    DeltaTable(table).optimize.compact()
    assert judge(3).verdict == "ok"
    DeltaTable(table).vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert judge(3).verdict == "refuse"
    assert "1 more files" in judge(3).detail


def test_what_is_cleaned_from_the_log_is_seen(judge: Judge, table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    (table / "_delta_log" / f"{2:020}.json").unlink()
    assert judge(3).verdict == "ok"
    assert judge(2).verdict == "refuse"
    assert judge(2).detail == f"the log of {table} no longer has version 2"


def test_a_version_that_the_log_cannot_give_any_more(judge: Judge, table: Path) -> None:
    DeltaTable(table).create_checkpoint()
    for version in (0, 1):
        (table / "_delta_log" / f"{version:020}.json").unlink()
    assert judge(0).detail == f"the log of {table} no longer gives version 1"
    assert judge(2).verdict == "ok"


def test_a_table_that_was_recreated(judge: Judge, table: Path, tmp_path: Path) -> None:
    table.rename(tmp_path / "old")
    assert judge(2).detail == f"there is no Delta table at {table}"
    for n in range(9):
        add_row(table, n)
    assert judge(2).verdict == "refuse"
    assert "it was recreated" in judge(2).detail


def test_from_nothing_the_table_is_read_as_it_is_now(tmp_path: Path, table: Path) -> None:
    checkpoint = four_batches(tmp_path / "c", table)
    file_of(table, 0).unlink()
    (check,) = check_sources(read_checkpoint(str(checkpoint)), 0, None, replan=True).checks
    assert check.verdict == "ok"


def test_a_table_that_nobody_named(judge: Any) -> None:
    assert judge(2, path=None).verdict == "warn"
    assert "the table is not known from here" in judge(2, path=None).detail


def test_a_part_of_a_version(tmp_path: Path) -> None:
    table = tmp_path / "t"
    write_deltalake(table, pa.table({"n": [0]}))
    write_deltalake(
        table, pa.table({"n": [1, 2], "day": ["a", "b"]}), mode="append", schema_mode="merge"
    )
    found = open_table(str(table))
    assert found is not None
    assert found.id == str(DeltaTable(table).metadata().id)
    assert found.log_retention == timedelta(days=30)
    end = DeltaOffset("7", 1, 3, snapshot=False)
    half = find_range(DeltaOffset("7", 1, 0, snapshot=False), end, end)
    assert (half.first, half.last, half.read) == (1, 1, 0)


# files: log entries 0 to 11, two files each, the tenth compacted


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "in put"
    folder.mkdir()
    for n in range(24):
        (folder / f"{n}.json").write_text("{}")
    return folder


def listed(folder: Path, log_id: int) -> list[str]:
    entries = []
    for n in (2 * log_id, 2 * log_id + 1):
        file = folder / f"{n}.json"
        entry = {
            "path": f"file://{file}".replace(" ", "%20"),
            "timestamp": file.stat().st_mtime_ns // 1_000_000,
            "batchId": log_id,
        }
        entries.append(json.dumps(entry))
    return entries


@pytest.fixture
def of_files(tmp_path: Path, inputs: Path) -> Path:
    """Batch n has read up to entry 3n + 2: ids of the log are no batch ids."""
    checkpoint = with_sources(tmp_path / "c", *({"logOffset": 3 * n + 2} for n in range(4)))
    for file in (checkpoint / "sources" / "0").iterdir():
        file.unlink()
    for log_id in range(12):
        lines, name = listed(inputs, log_id), str(log_id)
        if log_id == 9:
            lines, name = [line for n in range(10) for line in listed(inputs, n)], "9.compact"
        (checkpoint / "sources" / "0" / name).write_text("\n".join(["v1", *lines]))
    return checkpoint


def check_one(checkpoint: Path, batch: int) -> Check:
    (check,) = check_sources(read_checkpoint(str(checkpoint)), batch, None).checks
    return check


def test_files_that_are_all_there(of_files: Path) -> None:
    said = [check_one(of_files, batch) for batch in range(4)]
    assert [check.detail.partition(" are")[0] for check in said] == [
        "all 24 files",
        "all 18 files",
        "all 12 files",
        "all 6 files",
    ]
    assert "in one, whatever maxFilesPerTrigger says" in said[0].detail


def test_files_that_are_gone_are_named(of_files: Path, inputs: Path) -> None:
    for n in (6, 7, 8, 9, 10):
        (inputs / f"{n}.json").unlink()
    assert check_one(of_files, 2).verdict == "ok"
    check = check_one(of_files, 1)
    assert check.verdict == "refuse"
    names = ", ".join(f"file://{inputs}/{n}.json" for n in (6, 7, 8))
    assert f"archived or deleted since they were read: {names} and 2 more" in check.detail


def test_files_of_entries_that_spark_has_cleaned_up(of_files: Path, inputs: Path) -> None:
    for log_id in range(9):
        (of_files / "sources" / "0" / str(log_id)).unlink()
    assert check_one(of_files, 1).detail.startswith("all 18 files are there")
    (inputs / "6.json").unlink()
    assert check_one(of_files, 1).verdict == "refuse"


def test_a_folder_that_is_not_here_may_be_elsewhere(of_files: Path, inputs: Path) -> None:
    """A folder deleted beside others is a loss; none at all is another machine's."""
    shutil.rmtree(inputs)
    assert check_one(of_files, 1).verdict == "refuse"
    for log in (of_files / "sources" / "0").iterdir():
        log.write_text(log.read_text().replace("/in%20put", "/a/b"))
    check = check_one(of_files, 1)
    assert check.verdict == "warn"
    assert f"there is no {inputs.parent}/a" in check.detail
    noted = {"kind": "files", "path": str(inputs.parent)}
    (known,) = check_sources(read_checkpoint(str(of_files)), 1, noted).checks
    assert known.verdict == "refuse"


def test_the_whole_folder_of_a_source_deleted_is_a_loss(of_files: Path, inputs: Path) -> None:
    shutil.rmtree(inputs)
    for path, verdict in ((f"{inputs}", "refuse"), (f"file://{inputs}", "refuse")):
        (check,) = check_sources(
            read_checkpoint(str(of_files)), 1, {"kind": "files", "path": path}
        ).checks
        assert check.verdict == verdict, path
    elsewhere = {"kind": "files", "path": "/not/on this/machine"}
    (check,) = check_sources(read_checkpoint(str(of_files)), 1, elsewhere).checks
    assert (check.verdict, "there is no /not/on this" in check.detail) == ("warn", True)


def test_a_log_that_does_not_tell(of_files: Path) -> None:
    (of_files / "sources" / "0" / "10").unlink()
    assert check_one(of_files, 3).verdict == "refuse"
    assert "sources/0 does not list all files after entry 8" in check_one(of_files, 3).detail


def test_a_source_that_has_listed_nothing_yet(tmp_path: Path) -> None:
    checkpoint = with_sources(tmp_path / "c", {"logOffset": -1}, {"logOffset": -1})
    shutil.rmtree(checkpoint / "sources")
    assert check_one(checkpoint, 1).verdict == "ok"


def test_files_that_were_rewritten(of_files: Path, inputs: Path) -> None:
    os.utime(inputs / "23.json", (time.time() + 60,) * 2)
    check = check_one(of_files, 3)
    assert (check.verdict, check.detail) == (
        "warn",
        f"rewritten since they were read: file://{inputs}/23.json",
    )


def test_the_way_out_for_a_mirrored_topic() -> None:
    topics = {"t": Topic("t", "mirror", {0: (0, 9)})}
    replayed = (Replayed("t", 0, 9, 3, status="ok"),)
    noted = {"kind": "kafka", "path": "t", "topic_ids": [{"id": "first", "since_batch": 0}]}
    (check,) = check_kafka(replayed, topics, 3, noted)
    assert check.verdict == "refuse"
    assert "mirror with the same offsets, remove topic_ids from .ebbtide/pipe" in check.next
    # a run notes the new id, which helps from then on only
    later = {"id": "mirror", "since_batch": 7}
    first = noted["topic_ids"][0]
    verdicts = [
        check_kafka(replayed, topics, batch, noted | {"topic_ids": ids})[0].verdict
        for batch, ids in ((3, [first, later]), (7, [first, later]), (3, []), (3, [later]))
    ]
    assert verdicts == ["refuse", "ok", "ok", "ok"]


def test_a_source_that_we_do_not_know(tmp_path: Path) -> None:
    checkpoint = with_sources(tmp_path / "c", {"shard": "7"}, {"shard": "8"})
    assert check_one(checkpoint, 1).verdict == "warn"
    assert "cannot be seen from here" in check_one(checkpoint, 1).detail


def test_a_rate_source_can_always_be_read_again(tmp_path: Path) -> None:
    assert check_one(with_sources(tmp_path / "c", 3, 4), 1).verdict == "ok"


# what the runner notes


@pytest.mark.parametrize(
    ("source", "noted"),
    [
        (Delta("visits"), ("delta", "tables/visits")),
        (Files("in", schema="event_time TIMESTAMP"), ("files", "in")),
    ],
)
def test_the_owner_note_says_where_the_source_lies(
    source: Any, noted: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with claim("c", replace(PIPELINE, source=source), Settings(home=tmp_path)):
        pass
    note = read_note(open_folder("c"), "pipeline.json")
    assert note is not None
    assert note["source"] == {"kind": noted[0], "path": str(tmp_path / noted[1])}
