from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from ebbtide.checkpoint import Owner, layout, read_checkpoint
from ebbtide.compatibility import read_demands
from ebbtide.compatibility.operators import AGGREGATION, JOIN
from ebbtide.connectors.files.source import READ_BEFORE
from ebbtide.errors import CheckpointError
from ebbtide.history.store import Entry, write_entry
from ebbtide.notes import write_note
from ebbtide.storage import open_folder
from tests.compat.kept import FIXTURES, unpack
from tests.trees import Shape, make

VERSIONS = sorted(folder.name for folder in FIXTURES.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_windows_of_every_version_are_described(tmp_path: Path, version: str) -> None:
    kept = FIXTURES / version / "hdfs-windowed.tar.gz"
    _, demands = read_demands(str(unpack(kept, tmp_path / "checkpoint")))
    (operator,) = demands.operators
    assert operator.name == AGGREGATION
    assert operator.is_guess == version.startswith("3.")
    assert operator.windows == (("window", "window"),)
    assert operator.delays == {1_800_000}
    assert [source.kind for source in demands.sources] == ["files"]
    assert demands.sources[0].last.names[0].endswith("/input")
    assert demands.partitions == 2
    assert demands.watermark_ms > 0


@pytest.mark.parametrize("version", VERSIONS)
def test_joins_have_four_stores(tmp_path: Path, version: str) -> None:
    kept = FIXTURES / version / "rocksdb-join.tar.gz"
    _, demands = read_demands(str(unpack(kept, tmp_path / "checkpoint")))
    (operator,) = demands.operators
    assert operator.name == JOIN
    assert len(demands.sources) == 2
    assert {schema.store.split("-")[0] for schema in operator.schemas} == {"left", "right"}


@pytest.mark.parametrize("version", [one for one in VERSIONS if one > "4.1"])
def test_joins_may_have_column_families(tmp_path: Path, version: str) -> None:
    kept = FIXTURES / version / "rocksdb-join-format-3.tar.gz"
    _, demands = read_demands(str(unpack(kept, tmp_path / "checkpoint")))
    (operator,) = demands.operators
    assert operator.name == JOIN
    assert {schema.label for schema in operator.schemas} >= {
        *("left-keyToNumValues", "left-keyWithIndexToValue"),
        *("right-keyToNumValues", "right-keyWithIndexToValue"),
    }


@pytest.mark.parametrize("version", [one for one in VERSIONS if one > "4"])
def test_variables_are_listed(tmp_path: Path, version: str) -> None:
    kept = FIXTURES / version / "rocksdb-tws.tar.gz"
    _, demands = read_demands(str(unpack(kept, tmp_path / "checkpoint")))
    (operator,) = demands.operators
    assert operator.label == "transformWithState"
    assert operator.variables == {"sums": "ValueState"}
    assert "sums" in {schema.family for schema in operator.schemas}


def test_topics_are_named(tmp_path: Path) -> None:
    _, demands = read_demands(str(make(tmp_path / "checkpoint", Shape())))
    assert demands.sources[0].kind == "kafka"
    assert demands.sources[0].last.names == ("visits",)
    assert demands.next_batch == 7


def test_only_the_last_files_that_were_read_count(tmp_path: Path) -> None:
    """A compacted log lists those of earlier batches too; Spark opens those of the last one."""
    checkpoint = make_files(tmp_path, 98, 99)
    (read,) = (source.last for source in read_demands(str(checkpoint))[1].sources)
    assert set(read.names) == {"file:///in/a", "file:///in/b"}
    assert read.is_compared


def test_a_batch_without_files_compares_no_folder(tmp_path: Path) -> None:
    checkpoint = make_files(tmp_path, 99, 99)
    (read,) = (source.last for source in read_demands(str(checkpoint))[1].sources)
    assert set(read.names) == {"file:///in/a", "file:///in/b"}
    assert not read.is_compared


def test_a_log_of_files_that_is_gone_is_missed(tmp_path: Path) -> None:
    checkpoint = make_files(tmp_path, 98, 99)
    shutil.rmtree(checkpoint / "sources")
    (read,) = (source.last for source in read_demands(str(checkpoint))[1].sources)
    assert not read.is_whole


def test_a_fork_lists_files_that_no_batch_reads(tmp_path: Path) -> None:
    checkpoint = make_files(tmp_path, 99, 99)
    log = checkpoint / "sources/0/99.compact"
    log.write_text(log.read_text().replace('"batchId":99', f'"batchId":{READ_BEFORE}'))
    (read,) = (source.last for source in read_demands(str(checkpoint))[1].sources)
    assert read.is_whole
    assert not read.is_compared


@pytest.mark.parametrize(
    ("last", "location", "mode", "known"),
    [(6, None, "append", True), (5, None, None, False), (6, "/elsewhere", "append", False)],
    ids=["followed", "not followed", "a copy"],
)
def test_only_what_the_last_run_noted_counts(
    tmp_path: Path, last: int, location: str | None, mode: str | None, known: bool
) -> None:
    """A job that is started again without attach may have another mode and another sink.

    The mode is that of the batch, also in a copy, which may write elsewhere.
    """
    checkpoint = make(tmp_path / "checkpoint", Shape())
    folder = open_folder(str(checkpoint))
    sink = {"kind": "files", "name": "/out", "path": "/out"}
    owner = Owner("visits", sink=sink, location=location or folder.address)
    write_note(folder, layout.OWNER, owner.to_dict())
    offsets = read_checkpoint(str(checkpoint)).logs.by_id[last].offsets.sources
    write_entry(folder, Entry(last, "origin", "", "", offsets, 1, output_mode="append"))
    _, demands = read_demands(str(checkpoint))
    assert demands.output_mode == mode
    assert (demands.sink is not None) == known


def make_files(tmp_path: Path, *offsets: int) -> Path:
    """A checkpoint that has read files up to these offsets in its last two batches."""
    kept = FIXTURES / "4.2.0" / "hdfs-windowed.tar.gz"
    checkpoint = unpack(kept, tmp_path / "checkpoint")
    shutil.rmtree(checkpoint / "sources/0")
    (checkpoint / "sources/0").mkdir()
    read = [("/old", 98), ("/in/a", 99), ("/in/b", 99)]
    lines = [
        f'{{"path":"file://{folder}/x","timestamp":7,"batchId":{id_}}}' for folder, id_ in read
    ]
    (checkpoint / "sources/0/99.compact").write_text("\n".join(["v1", *lines]))
    numbers = sorted(int(path.name) for path in (checkpoint / "offsets").glob("[0-9]*"))
    for number, offset in zip(numbers[-2:], offsets, strict=True):
        path = checkpoint / "offsets" / str(number)
        head = path.read_text().splitlines()[:2]
        path.write_text("\n".join([*head, f'{{"logOffset":{offset}}}']))
    return checkpoint


def test_there_is_no_checkpoint_yet(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"There is no checkpoint at .* so any query can"):
        read_demands(str(tmp_path))
    with pytest.raises(CheckpointError, match=r"There is no checkpoint at .* so any query can"):
        read_demands(str(tmp_path / "absent"))
    (tmp_path / "metadata").write_text('{"id":"7"}')
    with pytest.raises(CheckpointError, match=r"No batch of .* is planned yet"):
        read_demands(str(tmp_path))
    (tmp_path / "metadata").unlink()
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(CheckpointError, match="is not a checkpoint: it has no file 'metadata'"):
        read_demands(str(tmp_path))


def test_a_damaged_schema_is_named(tmp_path: Path) -> None:
    kept = FIXTURES / "4.2.0" / "hdfs-windowed.tar.gz"
    checkpoint = unpack(kept, tmp_path / "checkpoint")
    (checkpoint / "state/0/0/_metadata/schema").write_bytes(b"\0\2v2")
    with pytest.raises(
        CheckpointError, match=r"_metadata/schema cannot be read: it ends too early"
    ):
        read_demands(str(checkpoint))
