"""Tables that only Spark can write go back with their checkpoint, and an undo gives all back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable
from delta.tables import IdentityGenerator
from pyspark.sql import SparkSession

from ebbtide import Delta
from ebbtide.checkpoint import SinkChange
from ebbtide.config import Settings
from ebbtide.connectors.delta import spark_rollback
from ebbtide.connectors.delta.log import find_state
from ebbtide.errors import CheckpointError
from ebbtide.rewind import RewindRequest, apply_rewind, finish_interrupted, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import WritableFolder
from tests.outputs import QUERY
from tests.power import PowerCutError, cut
from tests.spark.test_sinks import NEW, OLD, World, add, keep, lose, rows, said, visits
from tests.trees import Shape, make, snapshot

FIRST = 2
FEATURES = {
    "delta.enableInCommitTimestamps": "true",
    "delta.enableRowTracking": "true",
    "delta.enableTypeWidening": "true",
    "delta.enableDeletionVectors": "true",
    "delta.enableChangeDataFeed": "true",
    "delta.feature.allowColumnDefaults": "supported",
    "delta.feature.vacuumProtocolCheck": "supported",
    "delta.checkpointPolicy": "v2",
    "delta.checkpointInterval": "3",
}
NAMES = (
    "allowColumnDefaults, clustering, domainMetadata, identityColumns, "
    "inCommitTimestamp, rowTracking, typeWidening, vacuumProtocolCheck"
)


@pytest.fixture
def lent(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process with a session of its own borrows ours."""

    def call(_function: str, change: SinkChange, marks: dict[str, str]) -> None:
        spark_rollback.roll_back(spark, change, marks)

    monkeypatch.setattr("ebbtide.connectors.delta.rollback.call_with_spark", call)


def create(spark: SparkSession, path: Path) -> None:
    """A table with all the features, clustered, and with an identity column and a default."""
    table = DeltaTable.create(spark).location(str(path)).clusterBy("n")
    table = table.addColumn("n", "SMALLINT").addColumn("device", "STRING")
    table = table.addColumn("id", "BIGINT", generatedAlwaysAs=IdentityGenerator())
    for name, value in FEATURES.items():
        table = table.property(name, value)
    table.execute()
    for change in ("ALTER COLUMN n TYPE INT", "ADD CONSTRAINT some CHECK (n >= 0)"):
        spark.sql(f"ALTER TABLE delta.`{path}` {change}")
    spark.sql(f"ALTER TABLE delta.`{path}` ADD COLUMN seen INT")
    spark.sql(f"ALTER TABLE delta.`{path}` ALTER COLUMN seen SET DEFAULT 7")


@pytest.mark.usefixtures("one_session", "lent")
def test_a_table_with_every_feature(
    spark: SparkSession, settings: Settings, tmp_path: Path
) -> None:
    world = World(tmp_path / "w", settings, lambda out: Delta(str(out)))
    create(spark, world.out)
    world.run(lose)

    def held() -> list[tuple[int, str]]:
        return rows(spark.read.format("delta").load(str(world.out)))

    assert held() == visits(OLD, lost=True)
    before = world.logs_and_state()
    planned = said(world.plan(remedy="restore"))
    assert "with Spark, which takes a minute: Delta's library cannot write its features" in planned
    assert NAMES in planned
    world.rewind(remedy="restore")
    assert held() == visits(range(2))
    add(world.folder / "in", NEW)
    world.run(keep)
    assert held() == visits(range(NEW + 1))
    ids = [row.id for row in spark.read.format("delta").load(str(world.out)).collect()]
    assert len(ids) == len(set(ids))
    world.undo()
    assert held() == visits(OLD, lost=True)
    assert world.logs_and_state() == before
    world.undo()
    assert held() == visits(range(NEW + 1))


def write(spark: SparkSession, table: Path, batch: int, by: str, rows: str) -> None:
    writer = spark.sql(rows).coalesce(1).write.format("delta").mode("append")
    # in a session of ours, but not with our mark
    writer = writer.option("userMetadata", "by somebody")
    writer.option("txnAppId", by).option("txnVersion", batch).save(str(table))


def column(spark: SparkSession, table: Path) -> list[str]:
    return sorted(row[0] for row in spark.read.format("delta").load(str(table)).collect())


def rewind(checkpoint: Path, table: Path, on: WritableFolder | None = None) -> None:
    flags: dict[str, Any] = {"remedy": "restore", "sink_tables": (str(table),)}
    request = RewindRequest(str(checkpoint), ToBatch(FIRST), assume_stopped=True, **flags)
    apply_rewind(plan_rewind(request), assume_stopped=True, folder=on)


def test_names_that_only_spark_writes(
    spark: SparkSession, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """In a process of its own; merged meanwhile, and in a folder that the library cannot find."""
    checkpoint, table = make(tmp_path / "c", Shape(batches=4)), tmp_path / "%41 #1 Köln"
    DeltaTable.create(spark).location(str(table)).addColumn("row", "STRING").addColumn(
        "p", "STRING"
    ).partitionedBy("p").execute()
    for batch in range(4):
        values = ", ".join(f"('{batch} {p}', '{p}')" for p in ("Köln", "a b", "plain"))
        write(spark, table, batch, QUERY, f"SELECT * FROM VALUES {values} AS t(row, p)")
    before = column(spark, table)
    DeltaTable.forPath(spark, str(table)).optimize().executeCompaction()
    rewind(checkpoint, table)
    assert column(spark, table) == [row for row in before if int(row[0]) < FIRST]
    request.getfixturevalue("lent")
    undo_rewind(str(checkpoint), assume_stopped=True)
    assert column(spark, table) == before


@pytest.mark.usefixtures("lent")
def test_a_restore_with_spark_that_is_cut_or_too_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a function has noted goes back in a second commit."""
    checkpoint, table = make(tmp_path / "c", Shape(batches=4)), tmp_path / "table"
    created = DeltaTable.create(spark).location(str(table)).addColumn("row", "STRING")
    created.property("delta.enableInCommitTimestamps", "true").execute()
    for batch in range(4):
        write(spark, table, batch, "my-app", f"SELECT '{batch}' AS row")

    def noted() -> int | None:
        state = find_state(str(table))
        assert state is not None
        return state.noted("my-app")

    def die(*_arguments: object) -> None:
        raise PowerCutError

    with monkeypatch.context() as broken:
        broken.setattr(spark_rollback, "_note", die)
        assert cut(checkpoint, 1 << 60, lambda on: rewind(checkpoint, table, on))
    assert (column(spark, table), noted()) == (["0", "1"], 3)
    request = RewindRequest(str(checkpoint), ToBatch(FIRST), assume_stopped=True)
    with pytest.raises(CheckpointError, match="was interrupted"):
        plan_rewind(request)
    assert finish_interrupted(str(checkpoint), "rewind", lambda _journal: True)
    assert (column(spark, table), noted()) == (["0", "1"], 1)
    undo_rewind(str(checkpoint), assume_stopped=True)
    assert (column(spark, table), noted()) == (["0", "1", "2", "3"], 3)
    # somebody writes after we have looked, and before Spark reads the table
    real, before = spark_rollback._restore, snapshot(checkpoint)

    def late(session: SparkSession, path: str, version: int) -> None:
        monkeypatch.setattr(spark_rollback, "_restore", real)
        write(spark, table, 0, "other", "SELECT 'theirs' AS row")
        real(session, path, version)

    monkeypatch.setattr(spark_rollback, "_restore", late)
    with pytest.raises(CheckpointError, match="written to meanwhile: version"):
        rewind(checkpoint, table)
    assert (column(spark, table), noted()) == (["0", "1", "2", "3", "theirs"], 3)
    assert snapshot(checkpoint) == before
