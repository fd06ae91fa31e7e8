"""What Spark reads after a rewind, from Delta tables and from files: as the plan foretold."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import DeltaTable, write_deltalake
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from ebbtide.checkpoint import layout
from ebbtide.checks import Check
from ebbtide.notes import write_note
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder

Rows = dict[int, list[int]]
"""By batch, the numbers that it read."""


def run(stream: DataFrame, checkpoint: Path) -> Rows:
    """Run a query over all that is there."""
    read: Rows = {}

    def keep(rows: DataFrame, batch: int) -> None:
        read[batch] = sorted(row.n for row in rows.collect())

    query = (
        stream.select("n")
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(checkpoint))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    return read


def rewind(checkpoint: Path, batch: int) -> RewindPlan:
    plan = plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(batch), assume_stopped=True, remedy="none")
    )
    apply_rewind(plan, assume_stopped=True)
    return plan


def verdict(plan: RewindPlan, name: str) -> Check:
    (check,) = (check for check in plan.checks if check.name == name)
    return check


def test_a_delta_source_is_read_again_as_foretold(spark: SparkSession, tmp_path: Path) -> None:
    table, checkpoint = tmp_path / "table", tmp_path / "c"
    write_deltalake(table, pa.table({"n": [0]}))
    write_deltalake(table, pa.table({"n": [1]}), mode="append")
    stream = spark.readStream.format("delta").option("maxFilesPerTrigger", 1).load(str(table))
    first = run(stream, checkpoint)
    for n in range(2, 5):
        write_deltalake(table, pa.table({"n": [n]}), mode="append")
    first |= run(stream, checkpoint)
    # two batches over the rows with which it began, then one a version
    assert first == {n: [n] for n in range(5)}
    source = {"kind": "delta", "path": str(table)}
    write_note(open_folder(str(checkpoint)), layout.OWNER, {"source": source})

    for batch, needed in (
        (3, "what versions 3 to 4 added"),
        (1, "version 1 and what versions 2 to 4 added"),
    ):
        check = verdict(rewind(checkpoint, batch), "delta source")
        assert (check.verdict, check.detail) == ("ok", f"{table} holds {needed}")
        assert run(stream, checkpoint) == {n: [n] for n in range(batch, 5)}

    # merged and vacuumed, a file of batch 1 is gone; Spark fails where the plan refuses
    DeltaTable(table).optimize.compact()
    DeltaTable(table).vacuum(0, dry_run=False, enforce_retention_duration=False)
    plan = plan_rewind(
        RewindRequest(str(checkpoint), ToBatch(3), assume_stopped=True, remedy="none")
    )
    assert "was vacuumed" in verdict(plan, "delta source").detail
    for log in ("commits", "offsets"):
        for n in (4, 3):
            if (log, n) != ("offsets", 3):
                (checkpoint / log / str(n)).unlink()
                (checkpoint / log / f".{n}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException, match=r"FILE_NOT_EXIST|FileNotFound|not exist"):
        run(stream, checkpoint)


def test_a_file_source_is_read_again_as_foretold(spark: SparkSession, tmp_path: Path) -> None:
    """Twelve files, one a batch: the tenth entry of the source's log is a compacted one."""
    inputs, checkpoint = tmp_path / "in", tmp_path / "c"
    inputs.mkdir()
    for n in range(12):
        (inputs / f"{n:02}.json").write_text(json.dumps({"n": n}))
    stream = spark.readStream.schema("n INT").option("maxFilesPerTrigger", 1).json(str(inputs))
    first = run(stream, checkpoint)
    order = [n for batch in sorted(first) for n in first[batch]]
    assert sorted(order) == list(range(12))
    assert len(first) == 12
    log = sorted(path.name for path in (checkpoint / "sources" / "0").iterdir())

    naive = shutil.copytree(checkpoint, tmp_path / "naive")
    plan = rewind(checkpoint, 8)
    check = verdict(plan, "files")
    assert check.verdict == "ok"
    assert check.detail.startswith("all 4 files are there. After the first batch Spark reads all")
    # the source's log stays, the first batch keeps its file, and the rest comes as one batch
    assert sorted(path.name for path in (checkpoint / "sources" / "0").iterdir()) == log
    assert run(stream, checkpoint) == {8: order[8:9], 9: sorted(order[9:])}

    # a file that is gone: the plan refuses, for Spark leaves it out and says nothing
    (inputs / f"{order[10]:02}.json").unlink()
    plan = plan_rewind(RewindRequest(str(naive), ToBatch(8), assume_stopped=True, remedy="none"))
    assert f"{order[10]:02}.json; Spark would leave them out" in verdict(plan, "files").detail
    assert plan.refusals
    for log_name, low in (("commits", 8), ("offsets", 9)):
        for n in range(11, low - 1, -1):
            (naive / log_name / str(n)).unlink()
            (naive / log_name / f".{n}.crc").unlink(missing_ok=True)
    assert run(stream, naive) == {8: order[8:9], 9: sorted([order[9], order[11]])}
