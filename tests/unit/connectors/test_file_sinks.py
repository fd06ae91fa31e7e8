"""A file sink's log: what is another query's stays, what it names elsewhere is never touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ebbtide.checkpoint import read_logs
from ebbtide.checks import Check
from ebbtide.connectors import SinkPlace, connector_of
from ebbtide.connectors.files.log import empty_log, files_of_batch, read_sink_log
from ebbtide.errors import CheckpointError
from ebbtide.rewind import (
    RewindPlan,
    RewindRequest,
    apply_rewind,
    plan_rewind,
    undo_rewind,
)
from ebbtide.storage import Folder, open_folder, open_writable
from tests.outputs import shown, write_files
from tests.power import cut
from tests.trees import Shape, make, snapshot


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A checkpoint with batches 0 to 6."""
    return make(tmp_path / "c", Shape("hdfs"))


@pytest.fixture
def sink(tmp_path: Path) -> Path:
    """What its query wrote."""
    write_files(tmp_path / "out", range(7))
    return tmp_path / "out"


def plan(folder: Path, sink: Path, batch: int = 4) -> RewindPlan:
    flags: dict[str, Any] = {"to_batch": batch, "sink_files": str(sink)}
    return plan_rewind(RewindRequest.parse(str(folder), assume_stopped=True, **flags))


def check(plan: RewindPlan) -> Check:
    (found,) = (check for check in plan.checks if check.name == "sink")
    return found


def rewrite(sink: Path, batch: int, **entry: Any) -> None:
    """Change what the log says of the first file of a batch."""
    path = sink / "_spark_metadata" / str(batch)
    version, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([version, json.dumps(json.loads(first) | entry), *others]))


def test_batches_that_the_query_has_not_planned_are_anothers(folder: Path, sink: Path) -> None:
    write_files(sink, range(7, 9), "another's")
    found = check(plan(folder, sink))
    assert found.verdict == "refuse"
    assert "another query writes there, too: batches 7 to 8 cannot be this query's" in found.detail
    assert "a folder of its own" in found.next


def test_files_older_than_their_batch_are_anothers(folder: Path, sink: Path) -> None:
    """Both have a batch 5: the other's was there first, and ours was skipped."""
    for offsets in (folder / "offsets").glob("[0-9]"):
        text = offsets.read_text().replace('"batchTimestampMs": 1', '"batchTimestampMs": 1000001')
        assert "1000001" in text
        offsets.write_text(text)
        (offsets.parent / f".{offsets.name}.crc").unlink(missing_ok=True)
    rewrite(sink, 5, modificationTime=1_000_001_006)  # as it should be, but for a slow clock
    assert check(plan(folder, sink)).verdict == "ok"
    rewrite(sink, 5, modificationTime=1_000_000)
    found = check(plan(folder, sink))
    assert found.verdict == "refuse"
    assert "batch 5 cannot be this query's: its files are older than its plan" in found.detail


def test_an_undo_leaves_what_others_have_added(folder: Path, sink: Path) -> None:
    apply_rewind(plan(folder, sink), assume_stopped=True)
    write_files(sink, range(4, 7), "another's")
    added = shown(sink)
    with pytest.raises(CheckpointError, match="batches 5 to 6 cannot be this query's"):
        undo_rewind(str(folder), assume_stopped=True)
    undo_rewind(str(folder), assume_stopped=True, leave_sink=True)
    assert shown(sink) == added


def test_what_another_query_writes_during_a_rewind_stays(folder: Path, sink: Path) -> None:
    """It is interrupted, and until it is finished another query writes a batch 6."""
    asked, done = plan(folder, sink), 0
    entry = sink / "_spark_metadata/6"
    while entry.exists():
        assert cut(folder, done, lambda on: apply_rewind(asked, assume_stopped=True, folder=on))
        done += 1
    write_files(sink, (6,), "another's")
    theirs = entry.read_text()
    apply_rewind(asked, assume_stopped=True)
    assert entry.read_text() == theirs
    assert len(list(sink.glob("day*/part-another*"))) == 2


OUTSIDE = {
    "above": "{root}/../victims/file",
    "above, escaped": "{root}/%2e%2e/victims/file",
    "above, from within": "{root}/day=0%20x/../../victims/file",
    "elsewhere": "{above}/victims/file",
    "through a link": "{root}/link/file",
    "another system": "s3://bucket/victims/file",
    "a sibling": "{root}-2/file",
    "the folder": "{root}",
    "the one above": "{root}/..",
    "a folder in it": "{root}/day=1%20x",
    "its log": "{root}/_spark_metadata/0",
}
"""How a log may lead out of the folder, or to what is no data file in it."""


@pytest.mark.parametrize("way", OUTSIDE)
def test_what_a_log_names_outside_of_the_folder_is_never_touched(
    way: str, folder: Path, sink: Path, tmp_path: Path
) -> None:
    for victim in (tmp_path / "victims/file", tmp_path / "out-2/file"):
        victim.parent.mkdir()
        victim.write_text("not yours")
    (sink / "link").symlink_to(tmp_path / "victims")
    rewrite(sink, 5, path=OUTSIDE[way].format(root=sink.as_uri(), above=tmp_path.as_uri()))
    before = snapshot(tmp_path)
    with pytest.raises(CheckpointError, match="which lies elsewhere"):
        apply_rewind(plan(folder, sink), assume_stopped=True)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("name", ["_spark_metadata", "_ebbtide"])
def test_a_folder_of_the_sink_that_is_a_link_is_not_followed(
    name: str, folder: Path, sink: Path, tmp_path: Path
) -> None:
    (sink / name).mkdir(exist_ok=True)
    os.rename(sink / name, tmp_path / "elsewhere")
    (sink / name).symlink_to(tmp_path / "elsewhere")
    if name == "_spark_metadata":
        with pytest.raises(CheckpointError, match=f"{name} leads out of {sink}"):
            plan(folder, sink)
        return
    found = check(plan(folder, sink))
    assert (found.verdict, f"{name} is a link" in found.detail) == ("refuse", True)


def test_a_sink_may_be_named_by_a_link(folder: Path, sink: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(sink)
    apply_rewind(plan(folder, tmp_path / "alias"), assume_stopped=True)
    assert len(shown(sink)) == 8


def test_a_file_that_an_earlier_batch_names_in_other_letters_stays(
    folder: Path, sink: Path
) -> None:
    kept = next(sink.glob("day*/part-old-2-0.json"))
    rewrite(sink, 5, path=kept.as_uri().replace("part", "%70art"))
    apply_rewind(plan(folder, sink), assume_stopped=True)
    assert kept.exists()


def test_a_bucket_is_part_of_the_name() -> None:
    memory = fsspec.filesystem("memory")
    lines = [
        json.dumps({"path": f"s3a://{bucket}/out/{n}.json", "action": "add"})
        for n, bucket in enumerate(("lake", "other"))
    ]
    there = Folder("s3://lake/out", memory, "lake/out")
    memory.pipe({"/lake/out/0.json": b"", "/lake/out/1.json": b""})
    try:
        memory.pipe("/lake/out/_spark_metadata/0", "\n".join(["v1", lines[0]]).encode())
        found = read_sink_log(there, 0)
        assert found is not None
        assert found.data == ("0.json",)
        memory.pipe("/lake/out/_spark_metadata/0", "\n".join(["v1", *lines]).encode())
        with pytest.raises(CheckpointError, match=r"s3a://other/out/1\.json, which lies elsewhere"):
            read_sink_log(there, 0)
    finally:
        memory.rm("/lake", recursive=True)


def begin(folder: Path, sink: Path, *, is_own: bool = False) -> bool:
    place, logs = SinkPlace("files", "out", str(sink)), read_logs(open_folder(str(folder)))
    opened = open_writable(str(folder))
    return connector_of("files").sink.begin(opened, place, logs, is_own=is_own)


@pytest.mark.parametrize("batches", [1, 7, 10, 19, 20, 34])
def test_a_new_folder_gets_an_empty_log(batches: int, tmp_path: Path) -> None:
    folder, sink = make(tmp_path / "c", Shape("hdfs", batches=batches)), tmp_path / "out"
    assert begin(folder, sink)
    log = snapshot(sink)
    assert set(log) == {f"_spark_metadata/{name}" for name in empty_log(batches)}
    assert set(log.values()) == {b"v1"}
    # it was interrupted
    (sink / next(iter(log))).unlink()
    assert begin(folder, sink)
    assert snapshot(sink) == log
    # as Spark reads it after the next batch, and as we do
    write_files(sink, range(batches, batches + 1))
    assert len(shown(sink)) == 2
    found = read_sink_log(open_folder(str(sink)), batches)
    assert found is not None
    assert (found.problem, len([p for p in found.data if "crc" not in p])) == (None, 2)


def test_a_folder_that_has_a_log_is_left_alone(folder: Path, sink: Path) -> None:
    before = snapshot(sink)
    assert not begin(folder, sink)
    assert snapshot(sink) == before
    # a batch that was written, and not committed
    write_files(sink, (7,))
    planned = make(folder.parent / "d", Shape("hdfs", batches=8, committed=7))
    assert not begin(planned, sink, is_own=True)
    with pytest.raises(CheckpointError, match="would skip batch 7: its log says"):
        begin(planned, sink)  # as a fork of the query that wrote it
    with pytest.raises(CheckpointError, match="would skip batch 7: its log says"):
        begin(folder, sink)


def test_the_first_batch_needs_no_log(tmp_path: Path) -> None:
    folder = make(tmp_path / "c", Shape("hdfs", batches=1, committed=0))
    assert begin(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_the_files_of_one_run(folder: Path, sink: Path) -> None:
    """Those of another run, or only some of them, must not be taken for what a batch wrote."""
    hour = 3_600_000
    there, ran = open_folder(str(sink)), (hour, hour + 1_000)
    rewrite(sink, 5, modificationTime=hour + 500)
    mine = ["day=1 x/part-old-5-0.json", "day=1 x/part-old-5-1.json"]
    assert files_of_batch(there, 5, ran) == mine
    assert files_of_batch(there, 7, ran) is None, "the log ends with batch 6"
    with pytest.raises(CheckpointError, match=r"of batch 5 in .* are of another run"):
        files_of_batch(there, 5, (3 * hour, 3 * hour + 1))
    backup = apply_rewind(plan(folder, sink), assume_stopped=True)
    aside = f"_ebbtide/{backup.id}"
    assert files_of_batch(there, 5, ran) is None
    assert files_of_batch(there, 5, ran, backup.id) == [f"{aside}/{file}" for file in mine]
    with pytest.raises(CheckpointError, match=r"of batch 5 in .* are of another run"):
        files_of_batch(there, 5, (0, 1), backup.id)
    (sink / aside / mine[1]).unlink()
    with pytest.raises(CheckpointError, match="files of batch 5 are gone"):
        files_of_batch(there, 5, ran, backup.id)
    (sink / "day=0 x/part-old-2-0.json").unlink()
    with pytest.raises(CheckpointError, match="files of batch 2 are gone"):
        files_of_batch(there, 2, ran)
