"""Where a query stands, and forks that keep only that: on trees, without Spark."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ebbtide import read_offsets
from ebbtide.checkpoint import Timeline, read_checkpoint
from ebbtide.connectors import sources
from ebbtide.connectors.delta.source import DeltaOffset, find_starting_version
from ebbtide.connectors.files.source import READ_BEFORE, read_listed
from ebbtide.errors import CheckpointError, EbbtideError
from ebbtide.notes import read_note, write_note
from ebbtide.rewind import fork as forks
from ebbtide.storage import WritableFolder, open_writable
from tests.conftest import Cli
from tests.outputs import write_files
from tests.power import barrier, cut
from tests.trees import LAYOUTS, Shape, make, snapshot

DELTA = '{{"sourceVersion":1,"reservoirId":"7","reservoirVersion":{},"index":{},{}}}'
WHOLE, PARTLY, SNAPSHOT = (
    DELTA.format(4, -1, '"isStartingVersion":false'),
    DELTA.format(4, 2, '"isStartingVersion":false'),
    DELTA.format(4, 2, '"isStartingVersion":true'),
)


def with_sources(folder: Path, *batches: tuple[str, ...], committed: int | None = None) -> Path:
    """A checkpoint whose batches end at these offsets, one for each source."""
    shape = Shape(batches=len(batches), committed=committed, hadoop_checksums=False)
    make(folder, shape)
    shutil.rmtree(folder / "sources")
    for n, offsets in enumerate(batches):
        meta = {"batchWatermarkMs": 0, "batchTimestampMs": n, "conf": {}}
        lines = ["v1", json.dumps(meta), *offsets]
        (folder / "offsets" / str(n)).write_text("\n".join(lines))
    return folder


def kafka(**partitions: int) -> str:
    return json.dumps({"visits": {name[1:]: offset for name, offset in partitions.items()}})


def begin_kafka(folder: Path, offset: str, source: str = "0") -> None:
    (folder / "sources" / source).mkdir(parents=True, exist_ok=True)
    (folder / "sources" / source / "0").write_bytes(b"\0v1\n" + offset.encode())


def list_files(checkpoint: Path, inputs: Path, count: int, source: str = "0") -> None:
    """A source's log of so many files, one an entry; the tenth repeats all before it."""
    log = checkpoint / "sources" / source
    for folder in (log, inputs):
        folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for n in range(count):
        (inputs / f"{n}.json").touch()
        entry = {"path": f"file://{inputs}/{n}.json", "timestamp": 2_000_000_000_000, "batchId": n}
        lines.append(json.dumps(entry))
        whole = (n + 1) % 10 == 0
        name, shown = (f"{n}.compact", lines) if whole else (f"{n}", lines[-1:])
        (log / name).write_text("\n".join(["v1", *shown]))


def options(checkpoint: Path, at_batch: int | None = None) -> dict[str, str]:
    (source,) = read_offsets(checkpoint, at_batch).sources
    return dict(source.options)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_where_each_batch_begins(layout: str, tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", Shape(layout))
    before = snapshot(checkpoint)
    assert options(checkpoint, 0) == {"startingOffsets": '{"visits":{"0":0,"1":0}}'}
    assert options(checkpoint, 4) == {"startingOffsets": '{"visits":{"0":3,"1":6}}'}
    position = read_offsets(checkpoint)
    assert (position.batch, position.planned) == (7, False)
    assert position.sources[0].options == {"startingOffsets": '{"visits":{"0":6,"1":12}}'}
    assert position.csv == "visits,0,6\nvisits,1,12"
    assert options(checkpoint, 7) == position.sources[0].options
    assert snapshot(checkpoint) == before


def test_a_batch_that_is_planned_begins_where_the_last_committed_one_ended(tmp_path: Path) -> None:
    position = read_offsets(make(tmp_path / "c", Shape("hdfs", committed=6)))
    assert (position.batch, position.planned) == (6, True)
    assert position.csv == "visits,0,5\nvisits,1,10"
    # two are planned: Spark would leave the first of them out
    position = read_offsets(make(tmp_path / "d", Shape("hdfs", committed=5)))
    assert (position.batch, position.planned, position.csv) == (5, True, "visits,0,4\nvisits,1,8")


def test_logs_that_spark_has_cleaned_up(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", Shape("hdfs", first=20))
    assert read_offsets(checkpoint, 21).csv == "visits,0,20\nvisits,1,40"
    assert read_offsets(checkpoint, 0).csv == "visits,0,0\nvisits,1,0"
    for batch, says in (
        (20, "Where batch 20 of .* begins is not known: offsets/19 is gone. Choose another batch"),
        (19, "has no batch 19. It has 20 to 26"),
        (-1, "has no batch -1"),
        (28, "has no batch 28"),
    ):
        with pytest.raises(CheckpointError, match=says):
            read_offsets(checkpoint, batch)


def test_ids_with_gaps(tmp_path: Path) -> None:
    """As asynchronous progress tracking leaves them, without state."""
    checkpoint = make(tmp_path / "c", Shape())
    for n in (2, 3, 5):
        (checkpoint / f"offsets/{n}").unlink()
        (checkpoint / f"commits/{n}").unlink()
    assert read_offsets(checkpoint, 4).csv == "visits,0,1\nvisits,1,2"
    (checkpoint / "commits/6").unlink()
    position = read_offsets(checkpoint)
    assert (position.batch, position.planned, position.csv) == (6, True, "visits,0,4\nvisits,1,8")


def test_partitions_that_came_and_went(tmp_path: Path) -> None:
    checkpoint = with_sources(
        tmp_path / "c", (kafka(p0=1),), (kafka(p0=2, p1=3),), (kafka(p1=7, p2=9),)
    )
    begin_kafka(checkpoint, kafka(p0=0))
    (source,) = read_offsets(checkpoint, 2).sources
    # Spark takes startingOffsets only if they name all partitions that there are, and no other
    assert source.options == {"startingOffsets": '{"visits":{"1":3,"2":0}}'}
    assert source.remarks == (
        "visits partition 0 is gone, and left out",
        "visits partition 2 was added since, and is read from its beginning",
    )
    # a fork begins as the query would have gone on: Spark looks for new partitions itself
    forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), 2, offsets_only=True)
    assert (tmp_path / "n/sources/0/0").read_bytes() == b'\0v1\n{"visits":{"0":2,"1":3}}'


def test_no_place_in_the_first_offsets(tmp_path: Path) -> None:
    checkpoint = with_sources(tmp_path / "c", (kafka(p0=5, p1=5),))
    begin_kafka(checkpoint, kafka(p0=-2, p1=-1))
    (source,) = read_offsets(checkpoint, 0).sources
    assert source.options == {"startingOffsets": '{"visits":{"0":-2,"1":-1}}'}
    assert source.group_offsets == ()
    assert source.remarks[0].startswith("visits partition 0 begins with the earliest record")
    with pytest.raises(CheckpointError, match="begins visits partition 0 with the earliest record"):
        forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), 0, offsets_only=True)
    (checkpoint / "sources/0/0").unlink()
    (source,) = read_offsets(checkpoint, 0).sources
    assert (source.options, source.offset) == ({}, None)
    with pytest.raises(CheckpointError, match="has no file sources/0/0, which says where it began"):
        forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), 0, offsets_only=True)
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize(
    ("offset", "version", "says"),
    [
        (WHOLE, 4, "Spark refuses to start until the table has version 4"),
        (PARTLY, None, "startingVersion 4 would read that twice, 5 would skip the rest"),
        (SNAPSHOT, None, "of the rows of version 4, with which the query began, a part is not"),
        (DELTA.format(4, (1 << 63) - 101, '"isStartingVersion":false'), 5, "version 5"),
        (DELTA.format(4, -20, '"isStartingVersion":false'), None, "of version 4 a part is read"),
    ],
    ids=["whole", "partly", "snapshot", "end", "schema change"],
)
def test_a_delta_table(offset: str, version: int | None, says: str, tmp_path: Path) -> None:
    found, remark = find_starting_version(DeltaOffset.parse(offset))
    assert found == version
    assert says in remark
    checkpoint = with_sources(tmp_path / "c", (offset,))
    assert options(checkpoint) == ({} if version is None else {"startingVersion": str(version)})
    assert "nothing was read of it" in read_offsets(checkpoint, 0).sources[0].remarks[0]
    for batch in (0, 1):
        with pytest.raises(CheckpointError, match=r"Source 0 of .* cannot begin at an offset with"):
            forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), batch, offsets_only=True)
    assert not (tmp_path / "n").exists()


@pytest.mark.parametrize("offset", ["17", '{"cursor":"x"}', "?"])
def test_sources_without_an_option(offset: str, tmp_path: Path) -> None:
    checkpoint = with_sources(tmp_path / "c", (offset,))
    (source,) = read_offsets(checkpoint).sources
    assert (source.offset, source.options, source.can_fork) == (offset, {}, False)
    assert "it has no option with which a new query begins at an offset" in source.remarks
    with pytest.raises(CheckpointError, match="only Kafka and files can"):
        forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), None, offsets_only=True)


def test_several_sources(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    checkpoint = with_sources(
        tmp_path / "c",
        ("-", '{"logOffset":0}', "-"),
        (kafka(p0=2), '{"logOffset":1}', "-"),
    )
    begin_kafka(checkpoint, kafka(p0=1))
    list_files(checkpoint, inputs, 2, "1")
    position = read_offsets(checkpoint, 1)
    assert [source.kind for source in position.sources] == ["kafka", "files", "none"]
    assert [source.offset for source in position.sources] == [
        kafka(p0=1),
        '{"logOffset":0}',
        None,
    ]
    assert [source.to_dict()["index"] for source in position.sources] == [0, 1, 2]
    made = forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), 1, offsets_only=True)
    assert sorted(made.bytes) == ["sources/0/0", "sources/1/0"]
    assert (tmp_path / "n/sources/0/0").read_bytes() == b'\0v1\n{"visits":{"0":1}}'
    (entry,) = (tmp_path / "n/sources/1/0").read_text().splitlines()[1:]
    assert json.loads(entry)["path"] == f"file://{inputs}/0.json"


def test_named_sources(tmp_path: Path) -> None:
    """Spark 4.2 names them in offsets of format 2; the name is that of the folder."""
    checkpoint = with_sources(tmp_path / "c", ("orders:" + kafka(p0=2),))
    entry = checkpoint / "offsets/0"
    entry.write_text(entry.read_text().replace("v1", "v2", 1))
    begin_kafka(checkpoint, kafka(p0=1), "orders")
    assert read_offsets(checkpoint, 0).csv == "visits,0,1"
    forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), None, offsets_only=True)
    assert (tmp_path / "n/sources/orders/0").read_bytes() == b'\0v1\n{"visits":{"0":2}}'
    entry.write_text(entry.read_text().replace("orders:", "../..:"))
    with pytest.raises(CheckpointError, match="name a source that is no folder"):
        read_offsets(checkpoint)


def seen(checkpoint: Path) -> list[str]:
    lines = (checkpoint / "sources/0/0").read_text().splitlines()[1:]
    assert {json.loads(line)["batchId"] for line in lines} <= {READ_BEFORE}
    return [Path(json.loads(line)["path"]).name for line in lines]


def test_the_files_that_were_read(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    ends = [(f'{{"logOffset":{n}}}',) for n in range(13)]
    checkpoint = with_sources(tmp_path / "c", *ends)
    list_files(checkpoint, inputs, 14)  # the log is one ahead
    for batch, count in ((0, 0), (1, 1), (9, 9), (10, 10), (12, 12), (None, 13)):
        new = tmp_path / f"fork-{batch}"
        made = forks.fork_checkpoint(str(checkpoint), str(new), batch, offsets_only=True)
        assert (made.first_batch, made.mode, made.offsets_only) == (0, "replan", True)
        assert made.at_batch == (13 if batch is None else batch)
        names = seen(new) if count else []
        assert names == [f"{n}.json" for n in range(count)]
    # cleaned up, the entries stand in the compacted one
    for n in range(9):
        (checkpoint / "sources/0" / str(n)).unlink()
    again = tmp_path / "again"
    forks.fork_checkpoint(str(checkpoint), str(again), 5, offsets_only=True)
    assert seen(again) == [f"{n}.json" for n in range(5)]
    # a fork of a fork: what the first had read before it began was read, too
    begun = with_sources(tmp_path / "begun", ('{"logOffset":1}',))
    shutil.copytree(again / "sources", begun / "sources")
    line = {"path": f"file://{inputs}/5.json", "timestamp": 2_000_000_000_000, "batchId": 1}
    (begun / "sources/0/1").write_text("v1\n" + json.dumps(line))
    forks.fork_checkpoint(str(begun), str(tmp_path / "third"), None, offsets_only=True)
    assert seen(tmp_path / "third") == [f"{n}.json" for n in range(6)]
    # and a rewind of it to batch 0 reads only what it read itself
    listed = read_listed(read_checkpoint(str(begun)), 0, -1, 1)
    assert [Path(file.path).name for file in listed or ()] == ["5.json"]


def test_file_sources_that_cannot_begin_there(tmp_path: Path) -> None:
    inputs = tmp_path / "in"
    ends = [(f'{{"logOffset":{n}}}',) for n in range(4)]
    checkpoint = with_sources(tmp_path / "c", *ends)
    list_files(checkpoint, inputs, 4)

    def refused(batch: int | None, says: str) -> None:
        with pytest.raises(CheckpointError, match=says):
            forks.fork_checkpoint(str(checkpoint), str(tmp_path / "n"), batch, offsets_only=True)
        assert not (tmp_path / "n").exists()

    # what a new query has to find again
    (inputs / "3.json").unlink()
    refused(2, r"cannot be forked at batch 2: archived or deleted since .*3\.json")
    (inputs / "3.json").touch()
    entry = (checkpoint / "sources/0/3").read_text().replace("3.json", "0.json")
    (checkpoint / "sources/0/3").write_text(entry)
    refused(2, r"has read file://.*/0\.json before this batch and again after it")
    (checkpoint / "sources/0/3").write_text("v1\n[]")
    refused(None, "sources/0/3 is no list of files")
    (checkpoint / "sources/0/1").unlink()
    refused(None, "sources/0 of .* has no entry 1: which files were read is not known")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_fork_without_state(layout: str, tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape(layout, operator_metadata="v1")), tmp_path / "n"
    folder = open_writable(str(origin))
    source = {"kind": "kafka", "path": "visits", "topic_ids": [{"id": "x", "since_batch": 5}]}
    sink = {"kind": "kafka", "name": "t"}
    write_note(folder, "pipeline.json", {"pipeline": "p", "source": source, "sink": sink})
    before = snapshot(origin)
    made = forks.fork_checkpoint(str(origin), str(new), 4, offsets_only=True)
    assert snapshot(origin) == before
    assert sorted(snapshot(new)) == ["metadata", "sources/0/0"]
    found = read_checkpoint(str(new))
    assert (found.logs.query_id, found.logs.next_id) == (made.query_id, 0)
    assert sources.read_position(found).csv == "visits,0,3\nvisits,1,6"
    written = open_writable(str(new))
    assert [part.name for part in Timeline.read(written).parts] == [made.name]
    assert read_note(written, "pipeline.json") == {"pipeline": "p"}
    note = read_note(written, "fork.json") or {}
    assert (note["at_batch"], note["first_batch"], note["offsets_only"]) == (4, 0, True)
    # one that has not run yet can be forked, too
    forks.fork_checkpoint(str(new), str(tmp_path / "m"), None, offsets_only=True)
    assert read_offsets(tmp_path / "m").csv == "visits,0,3\nvisits,1,6"


def test_state_that_is_lost_does_not_matter(tmp_path: Path) -> None:
    origin = make(tmp_path / "c", Shape("hdfs"))
    shutil.rmtree(origin / "state/0/1")
    with pytest.raises(CheckpointError):
        forks.fork_checkpoint(str(origin), str(tmp_path / "n"), 5)
    forks.fork_checkpoint(str(origin), str(tmp_path / "n"), 5, offsets_only=True)
    assert read_offsets(tmp_path / "n").csv == "visits,0,4\nvisits,1,8"


def test_a_kill_leaves_nothing_that_spark_starts_on(tmp_path: Path) -> None:
    inputs, new = tmp_path / "in", tmp_path / "n"
    ends = [(kafka(p0=n), f'{{"logOffset":{n}}}') for n in range(3)]
    origin = with_sources(tmp_path / "c", *ends)
    begin_kafka(origin, kafka(p0=0))
    list_files(origin, inputs, 3, "1")

    def fork(on: WritableFolder) -> None:
        forks.fork_checkpoint(str(origin), str(new), 2, folder=on, offsets_only=True)

    before, cuts = snapshot(origin), 0
    while cut(new, cuts, fork):
        if new.exists() and snapshot(new):
            line = barrier(new)
            if line is None:  # all is done, and only the lease is not given back
                break
            command = f"ebbtide fork {origin} {new} --at-batch 2 --offsets-only"
            assert f"Make it again: {command}\n" in line
        cuts += 1
        if cuts % 2:  # what is half made goes when it is made again, half of the time here
            shutil.rmtree(new, ignore_errors=True)
    assert cuts > 7
    assert sorted(snapshot(new)) == ["metadata", "sources/0/0", "sources/1/0"]
    assert snapshot(origin) == before


def test_the_commands(inside: Cli, tmp_path: Path) -> None:
    origin, new = make(tmp_path / "c", Shape("hdfs", committed=6)), tmp_path / "n"
    shown = inside("offsets", origin)
    assert shown.stdout.splitlines() == [
        'source 0 (kafka): {"visits": {"0": 5, "1": 10}}',
        """.option("startingOffsets", '{"visits":{"0":5,"1":10}}')""",
        "visits,0,5",
        "visits,1,10",
    ]
    assert "Warning: batch 6 is planned, but not committed" in shown.stderr
    assert f"ebbtide fork {origin} NEW --at-batch 6 --offsets-only" in shown.stderr
    assert inside("offsets", origin, "--csv").stdout == "visits,0,5\nvisits,1,10\n"
    found = json.loads(inside("offsets", origin, "--at-batch", "1", "-o", "json").stdout)
    assert (found["batch"], found["planned"]) == (1, False)
    (source,) = found["sources"]
    assert source["options"] == {"startingOffsets": '{"visits":{"0":0,"1":0}}'}
    assert source["group_offsets"][1] == {"topic": "visits", "partition": 1, "offset": 0}

    made = inside("fork", origin, new, "--offsets-only")
    assert made.returncode == 0, made.stderr
    assert "starts with batch 0, without state, where batch 6 of the first begins" in made.stderr
    assert "Warning: state and watermark start over." in made.stderr
    assert "Warning: batch 6 of the first is planned, but not committed." in made.stderr
    plain = json.loads(
        inside(
            "fork", origin, tmp_path / "m", "--offsets-only", "--at-batch", "2", "-o", "json"
        ).stdout
    )
    assert (plain["at_batch"], plain["first_batch"], plain["is_planned"]) == (2, 0, False)


def test_bad_input(inside: Cli, tmp_path: Path) -> None:
    origin, empty = make(tmp_path / "c", Shape("hdfs")), tmp_path / "empty"
    empty.mkdir()
    new = tmp_path / "n"
    begun = tmp_path / "begun"
    begun.mkdir()
    (begun / "metadata").write_text('{"id":"7"}')
    for arguments, code, says in (
        (("offsets", empty), 1, "is not a checkpoint"),
        (("offsets", begun), 1, "does not say what its query reads: it has not begun."),
        (("offsets", origin, "--at-batch", "99"), 1, "has no batch 99. It has 0 to 6"),
        (("offsets", origin, "--at-batch", "x"), 2, "--at-batch"),
        (("fork", origin, new), 2, "needs a batch. Add --at-batch N or --offsets-only."),
        (("fork", origin, new, "--offsets-only", "--at-batch", "8"), 1, "has no batch 8"),
        (("fork", begun, new, "--offsets-only"), 1, "it has not begun"),
        (("fork", origin, origin / "in", "--offsets-only"), 2, "lies inside the checkpoint"),
        (("fork", origin, empty.parent, "--offsets-only"), 1, "is not empty"),
    ):
        answer = inside(*map(str, arguments))
        assert (answer.returncode, answer.stdout, new.exists()) == (code, "", False), arguments
        assert says in answer.stderr
        assert "Traceback" not in answer.stderr


def test_a_rewind_that_is_not_finished(tmp_path: Path) -> None:
    origin = make(tmp_path / "c", Shape("hdfs"))
    (origin / "offsets/7").write_text("ebbtide: A rewind to batch 5 was interrupted.")
    with pytest.raises(EbbtideError, match="is the barrier of a rewind"):
        read_offsets(origin)
    with pytest.raises(EbbtideError, match="is the barrier of a rewind"):
        forks.fork_checkpoint(str(origin), str(tmp_path / "n"), None, offsets_only=True)


def test_a_folder_that_would_skip_batches_is_refused(inside: Cli, tmp_path: Path) -> None:
    """Batch ids start with 0 again: a folder that has seen some would skip new ones."""
    origin, used, new = make(tmp_path / "c", Shape("hdfs")), tmp_path / "used", tmp_path / "n"
    write_files(used, range(5))
    refused = inside("fork", origin, new, "--offsets-only", "--sink-files", used)
    assert (refused.returncode, new.exists()) == (1, False)
    assert f"{used} would skip" in refused.stderr
    done = inside("fork", origin, new, "--offsets-only", "--sink-files", tmp_path / "out")
    assert done.returncode == 0, done.stderr


def only_position(origin: Path, new: Path, batch: int | None = None) -> None:
    forks.fork_checkpoint(str(origin), str(new), batch, offsets_only=True)


def test_a_fork_of_a_fork_reads_no_file_again(tmp_path: Path) -> None:
    checkpoint = with_sources(tmp_path / "c", *[(f'{{"logOffset":{n}}}',) for n in range(3)])
    list_files(checkpoint, tmp_path / "in", 3)
    only_position(checkpoint, tmp_path / "f")
    with pytest.raises(CheckpointError, match="has not run a batch yet, and its place"):
        only_position(tmp_path / "f", tmp_path / "g")
    # its first batch is planned
    planned = tmp_path / "f" / "offsets"
    planned.mkdir(exist_ok=True)
    shutil.copy(checkpoint / "offsets" / "0", planned / "0")
    only_position(tmp_path / "f", tmp_path / "g")
    seen = (tmp_path / "g" / "sources" / "0" / "0").read_text()
    assert seen == (tmp_path / "f" / "sources" / "0" / "0").read_text()
    assert seen.count(str(READ_BEFORE)) == 3


def test_sources_of_format_v2_are_told_by_name(tmp_path: Path) -> None:
    """Spark leaves out those that it has not read, and orders the others by a hash."""
    checkpoint = with_sources(tmp_path / "c", ("",), ("",), ("",))
    ends = [
        ['b:{"tb":{"0":1}}'],
        ['b:{"tb":{"0":2}}', 'a:{"ta":{"0":7}}'],
        ['a:{"ta":{"0":8}}', 'b:{"tb":{"0":3}}'],
    ]
    for number, lines in enumerate(ends):
        meta = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
        (checkpoint / "offsets" / str(number)).write_text("\n".join(["v2", meta, *lines]))
    begin_kafka(checkpoint, '{"ta":{"0":5}}', "a")
    begin_kafka(checkpoint, '{"tb":{"0":0}}', "b")
    for batch, csv in ((1, "ta,0,5\ntb,0,1"), (2, "ta,0,7\ntb,0,2"), (3, "ta,0,8\ntb,0,3")):
        assert sorted(read_offsets(checkpoint, batch).csv.splitlines()) == csv.splitlines()
    only_position(checkpoint, tmp_path / "f", 1)
    places = {name: (tmp_path / "f" / "sources" / name / "0").read_bytes() for name in "ab"}
    assert places == {"a": b'\0v1\n{"ta":{"0":5}}', "b": b'\0v1\n{"tb":{"0":1}}'}


def test_a_source_that_is_read_twice_beside_another(tmp_path: Path) -> None:
    """Spark numbers folders by source, and lines by place in the query."""
    a, b = '{"ta":{"0":5}}', '{"tb":{"0":9}}'
    checkpoint = with_sources(tmp_path / "c", (a, a, b))
    begin_kafka(checkpoint, '{"ta":{"0":0}}', "0")
    begin_kafka(checkpoint, '{"tb":{"0":0}}', "1")
    with pytest.raises(CheckpointError, match="which of its 2 folders in sources belongs to which"):
        only_position(checkpoint, tmp_path / "f")
    # the two places have read it up to different offsets
    ahead = with_sources(tmp_path / "d", (a, '{"ta":{"0":6}}', b))
    begin_kafka(ahead, '{"ta":{"0":0}}', "0")
    begin_kafka(ahead, '{"tb":{"0":0}}', "1")
    with pytest.raises(CheckpointError, match="has no folder sources/2: which records"):
        only_position(ahead, tmp_path / "f")
    assert not (tmp_path / "f").exists()


def test_a_first_batch_that_spark_has_cleaned_up(tmp_path: Path) -> None:
    checkpoint = make(tmp_path / "c", Shape("hdfs", first=20))
    with pytest.raises(CheckpointError, match="Spark has cleaned up batch 0 of"):
        only_position(checkpoint, tmp_path / "f", 0)
