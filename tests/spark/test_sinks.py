"""Real sinks on a replay: run, rewind, run again. Each row once, and an undo gives all back."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from ebbtide import Delta, Files, ForeachBatch, Pipeline
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace
from ebbtide.errors import CheckpointError
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.fork import fork_checkpoint
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.stream import StreamOptions, run_stream
from tests.trees import snapshot

FIRST = 2
OLD = range(5)
"""Files that the wrong code read, one a batch; it goes wrong with file 2."""
NEW = 5
"""A file that comes after the rewind."""
DEVICES = ("phone", "laptop")


pytestmark = pytest.mark.usefixtures("one_session")


def add(folder: Path, n: int) -> None:
    """A file with one visit a device."""
    rows = [{"n": n, "device": device, "at": f"2025-09-04T07:{5 * n:02}:00"} for device in DEVICES]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f".{n}").write_text("\n".join(map(json.dumps, rows)))
    os.utime(folder / f".{n}", (1_000 + n, 1_000 + n))  # Spark reads them by age
    (folder / f".{n}").rename(folder / f"{n}.json")


def keep(rows: DataFrame) -> DataFrame:
    return rows.select("n", "device")


def lose(rows: DataFrame) -> DataFrame:
    """Phones are forgotten."""
    return keep(rows.where(f"n < {FIRST} OR device = 'laptop'"))


def once(rows: DataFrame) -> DataFrame:
    """With state: each visit once, however often it comes."""
    return keep(rows.dropDuplicatesWithinWatermark(["n", "device"]))


def once_but_lose(rows: DataFrame) -> DataFrame:
    return once(rows.where(f"n < {FIRST} OR device = 'laptop'"))


SCHEMA = "n INT, device STRING, at TIMESTAMP"


class World:
    """A pipeline over a folder of files, and what it has written."""

    def __init__(self, folder: Path, settings: Settings, sink: Callable[[Path], Any]) -> None:
        self.folder, self.settings = folder, settings
        self.checkpoint, self.out = folder / "checkpoint", folder / "out"
        self._sink = sink
        for n in OLD:
            add(folder / "in", n)

    def run(self, transform: Callable[[DataFrame], DataFrame]) -> None:
        source = Files(
            str(self.folder / "in"),
            schema=SCHEMA,
            options={"maxFilesPerTrigger": "1"},
        )
        pipeline = Pipeline(
            "visits-copy",
            source=source,
            event_time="at",
            watermark="1 hour",
            transform=transform,
            sink=self._sink(self.out),
        )
        options = StreamOptions(str(self.checkpoint), available_now=True)
        run_stream(pipeline, self.settings, options)

    def logs_and_state(self) -> dict[str, bytes]:
        """The checkpoint without what stays: files that the source listed, or versions share."""
        there = snapshot(self.checkpoint)
        return {path: data for path, data in there.items() if not _stays(path)}

    def plan(self, **more: Any) -> RewindPlan:
        request = RewindRequest(str(self.checkpoint), ToBatch(FIRST), assume_stopped=True, **more)
        return plan_rewind(request)

    def rewind(self, **more: Any) -> None:
        apply_rewind(self.plan(**more), assume_stopped=True)

    def undo(self) -> None:
        undo_rewind(str(self.checkpoint), assume_stopped=True)


def _stays(path: str) -> bool:
    return path.startswith("sources/") or "/SSTs/" in path or "/logs/" in path


def rows(table: DataFrame) -> list[tuple[int, str]]:
    return sorted((row.n, row.device) for row in table.collect())


def visits(files: range, *, lost: bool = False) -> list[tuple[int, str]]:
    gone = [(n, "phone") for n in files if lost and n >= FIRST]
    return sorted({(n, device) for n in files for device in DEVICES} - set(gone))


def said(plan: RewindPlan) -> str:
    return next(check.detail for check in plan.checks if check.name == "sink")


@pytest.mark.parametrize("stateful", [False, True])
def test_a_delta_table_loses_nothing(
    stateful: bool, spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    world = World(tmp_path / "w", settings, lambda out: Delta(str(out)))
    wrong, right = (once_but_lose, once) if stateful else (lose, keep)
    world.run(wrong)

    def held() -> list[tuple[int, str]]:
        return rows(spark.read.format("delta").load(str(world.out)))

    assert held() == visits(OLD, lost=True)
    last = 5 if stateful else 4  # with state, an empty batch follows
    foretold = f"batches 2 to {last} would be skipped, and new data up to batch {last} lost"
    assert foretold in said(world.plan())
    before = world.logs_and_state()
    if not stateful:
        for folder in (world.checkpoint, world.out):
            shutil.copytree(folder, tmp_path / folder.name)
        # as people do it by hand: the table restored, the logs rewound, and the code mended
        spark.sql(f"RESTORE TABLE delta.`{world.out}` TO VERSION AS OF {FIRST - 1}").collect()
        (world.checkpoint / ".ebbtide/pipeline.json").unlink()
        world.rewind(remedy="none")
        add(world.folder / "in", NEW)
        world.run(right)
        # the old rows are gone, nothing was written again, and the new file's rows are lost
        assert held() == visits(range(FIRST))
        # all that is taken back, for the way that works
        for folder in (world.checkpoint, world.out):
            shutil.rmtree(folder)
            shutil.copytree(tmp_path / folder.name, folder)
        (world.folder / "in" / f"{NEW}.json").unlink()
    world.rewind(remedy="restore")
    assert held() == visits(range(FIRST))
    add(world.folder / "in", NEW)
    world.run(right)
    assert held() == visits(range(NEW + 1))
    world.undo()
    assert held() == visits(OLD, lost=True)
    assert world.logs_and_state() == before
    # the old timeline goes on, under its old id
    world.run(wrong)
    assert held() == visits(range(NEW + 1), lost=True)


def test_rows_that_come_again_are_as_many_as_foretold(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    world = World(tmp_path / "w", settings, lambda out: Delta(str(out)))
    world.run(keep)
    assert "6 rows would be there twice" in said(world.plan(remedy="append-again"))
    world.rewind(remedy="append-again")
    world.run(keep)
    held = rows(spark.read.format("delta").load(str(world.out)))
    assert held == sorted(visits(OLD) + visits(range(FIRST, 5)))


def test_a_file_sink_loses_nothing(spark: SparkSession, settings: Settings, tmp_path: Path) -> None:
    # so that an entry that holds all before it is among those that go
    options = {"spark.sql.streaming.fileSink.log.compactInterval": "3"}
    world = World(tmp_path / "w", settings, lambda out: Files(str(out), "parquet"))
    for name, value in options.items():
        spark.conf.set(name, value)
    try:
        world.run(once_but_lose)

        def held() -> list[tuple[int, str]]:
            return rows(spark.read.parquet(str(world.out)))

        assert (world.out / "_spark_metadata/2.compact").exists()
        before, files = world.logs_and_state(), snapshot(world.out)
        assert "would skip batches 2 to 5, so its log goes back, too" in said(world.plan())
        world.rewind()
        assert held() == visits(range(FIRST))
        add(world.folder / "in", NEW)
        world.run(once)
        assert held() == visits(range(NEW + 1))
        # also for readers that do not know of the sink's log
        direct = [str(path) for path in world.out.glob("*.parquet")]
        assert rows(spark.read.parquet(*direct)) == visits(range(NEW + 1))
        world.undo()
        assert held() == visits(OLD, lost=True)
        assert world.logs_and_state() == before
        there = snapshot(world.out)
        assert {p: c for p, c in there.items() if not p.startswith("_ebbtide")} == files
        world.run(once_but_lose)
        assert held() == visits(range(NEW + 1), lost=True)
    finally:
        for name in options:
            spark.conf.unset(name)


def test_forks_of_a_file_sink_can_be_read(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    """In new folders, whether `ebbtide run` or a job of one's own writes there."""
    world = World(tmp_path / "w", settings, lambda out: Files(str(out), "parquet"))
    world.run(keep)
    origin, first_out = world.checkpoint, world.out
    add(world.folder / "in", NEW)
    world.checkpoint, world.out = tmp_path / "fork", tmp_path / "second"
    fork_checkpoint(str(origin), str(world.checkpoint), FIRST)
    world.run(keep)
    assert rows(spark.read.parquet(str(world.out))) == visits(range(FIRST, NEW + 1))
    # a fork of the fork, and its own rewind
    (place,) = SinkPlace.named({"--sink-files": [str(tmp_path / "third")]})
    fork_checkpoint(str(world.checkpoint), str(tmp_path / "again"), FIRST + 1, sink=place)
    source = spark.readStream.schema("n INT, device STRING, at TIMESTAMP")
    (
        keep(source.json(str(world.folder / "in")))
        .writeStream.format("parquet")
        .option("path", str(tmp_path / "third"))
        .option("checkpointLocation", str(tmp_path / "again"))
        .trigger(availableNow=True)
        .start()
        .awaitTermination()
    )
    assert rows(spark.read.parquet(str(tmp_path / "third"))) == visits(range(FIRST + 1, NEW + 1))
    world.rewind()
    assert rows(spark.read.schema("n INT, device STRING").parquet(str(world.out))) == []
    # in the folder of the first it would skip
    world.out = first_out
    with pytest.raises(CheckpointError, match="would skip batches 2 to 4"):
        world.run(keep)
    assert rows(spark.read.parquet(str(first_out))) == visits(OLD)


def test_a_function_that_notes_its_batches_in_a_table(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    out, got = tmp_path / "w" / "out", list[int]()

    def write(batch: DataFrame, number: int) -> None:
        got.append(number)
        writer = batch.write.format("delta").mode("append").option("txnAppId", "copier")
        writer.option("txnVersion", number).save(str(out))

    world = World(tmp_path / "w", settings, lambda _out: ForeachBatch(write))
    world.run(lose)
    assert "gets the output of batches 2 to 4 again" in said(world.plan())
    assert "copier, which foreachBatch passes as txnAppId" in said(
        world.plan(sink_tables=(str(out),))
    )
    world.rewind(sink_tables=(str(out),), remedy="restore")
    add(world.folder / "in", NEW)
    world.run(keep)
    # it gets the batches again under their numbers: the first as planned, the rest planned anew
    assert got == [*OLD, FIRST, FIRST + 1]
    assert rows(spark.read.format("delta").load(str(out))) == visits(range(NEW + 1))
    world.undo()
    assert rows(spark.read.format("delta").load(str(out))) == visits(OLD, lost=True)
    # what it noted is back, too: the old timeline goes on, and skips nothing new
    world.run(lose)
    held = rows(spark.read.format("delta").load(str(out)))
    assert held == visits(range(NEW + 1), lost=True)


class PlainWorld(World):
    """The same as a job of Spark's own, which leaves no note of where it writes."""

    def __init__(self, folder: Path, settings: Settings, spark: SparkSession, kind: str) -> None:
        super().__init__(folder, settings, lambda out: out)
        self.spark, self.kind = spark, kind
        self.tables = (self.out, folder / "more") if kind == "function" else (self.out,)

    @property
    def named(self) -> dict[str, Any]:
        """The flags that name its sinks."""
        if self.kind == "parquet":
            return {"sink_files": str(self.out)}
        return {"sink_tables": tuple(map(str, self.tables)), "remedy": "restore"}

    def run(self, transform: Callable[[DataFrame], DataFrame]) -> None:
        stream = self.spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
        visits = stream.json(str(self.folder / "in")).withWatermark("at", "1 hour")
        writer = transform(visits).writeStream.option("checkpointLocation", str(self.checkpoint))
        if self.kind == "function":
            writer = writer.foreachBatch(self._write)
        else:
            writer = writer.format(self.kind).option("path", str(self.out))
        writer.trigger(availableNow=True).start().awaitTermination()

    def _write(self, batch: DataFrame, number: int) -> None:
        batch.persist()
        for table in self.tables:
            writer = batch.write.format("delta").mode("append").option("txnAppId", "copier")
            writer.option("txnVersion", number).save(str(table))
        batch.unpersist()

    def held(self) -> list[list[tuple[int, str]]]:
        kind = "parquet" if self.kind == "parquet" else "delta"
        return [rows(self.spark.read.format(kind).load(str(table))) for table in self.tables]


@pytest.mark.parametrize("kind", ["delta", "parquet", "function"])
def test_a_job_of_sparks_own_loses_nothing_once_its_sink_is_named(
    kind: str, spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    world = PlainWorld(tmp_path / "w", settings, spark, kind)
    world.run(once_but_lose)
    before = snapshot(tmp_path)
    assert "Delta and file sinks skip batches that they have seen" in said(world.plan())
    with pytest.raises(CheckpointError, match="Name it with --sink-table or --sink-files"):
        world.rewind()
    if kind == "function":
        with pytest.raises(CheckpointError, match="more was not named: it lies beside"):
            world.rewind(sink_tables=(str(world.out),), remedy="restore")
    assert snapshot(tmp_path) == before
    world.rewind(**world.named)
    assert world.held() == [visits(range(FIRST))] * len(world.tables)
    add(world.folder / "in", NEW)
    world.run(once)
    assert world.held() == [visits(range(NEW + 1))] * len(world.tables)
    world.undo()
    assert world.held() == [visits(OLD, lost=True)] * len(world.tables)
    # named once for this checkpoint, but not for a copy of it
    assert world.plan(remedy=world.named.get("remedy")).refusals == ()
    shutil.copytree(world.checkpoint, tmp_path / "copy")
    world.checkpoint = tmp_path / "copy"
    assert "was copied or moved from" in said(world.plan())
    with pytest.raises(CheckpointError, match="an undo would also change"):
        world.undo()
