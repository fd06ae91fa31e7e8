from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ebbtide.config import Settings
from ebbtide.runtime.java import s3a_jars
from ebbtide.runtime.session import build_session, close_session
from tests import cells
from tests.conftest import INTERPRETED, NO_LINKS, SHORT_LIVED
from tests.servers.stores import stores, use  # noqa: F401


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """One session for all tests with Spark."""
    s3a = {"spark.jars": ",".join(map(str, s3a_jars()))}  # not on the path of the class archive
    conf = {"spark.driver.extraJavaOptions": SHORT_LIVED, **INTERPRETED, **NO_LINKS, **s3a}
    session = build_session("tests", settings, master="local[2]", conf=conf)
    yield session
    close_session(session)


@pytest.fixture
def one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """The runners make and end sessions of their own; here they borrow ours."""
    monkeypatch.setattr("ebbtide.runtime.session.build_session", lambda *_a, **_k: spark)
    monkeypatch.setattr("ebbtide.runtime.session.close_session", lambda _spark: None)


@pytest.fixture
def fresh_stores(spark: SparkSession) -> Iterator[None]:
    """Nothing of other tests' state, and nothing of ours for them."""
    cells.forget_state(spark)
    yield
    cells.forget_state(spark)


ShouldBe = Callable[[str, range], list[cells.Row]]


@pytest.fixture(scope="session")
def should_be(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> ShouldBe:
    """What a query that was right from the start writes over files; no store has a say in that."""
    known: dict[tuple[str, range], list[cells.Row]] = {}

    def of(query: str, files: range) -> list[cells.Row]:
        if (query, files) not in known:
            folder = tmp_path_factory.mktemp(query)
            cells.write_input(folder / "in", files)
            store = "hdfs" if cells.allowed("hdfs", query) else "rocksdb"
            where = (folder / "in", folder / "checkpoint")
            ran = cells.run(spark, query, store, *where, files_per_batch=len(files))
            known[query, files] = cells.result(query, [ran])
        return known[query, files]

    return of


RunOver = Callable[..., list[dict[str, object]]]
"""Rows, a transform, and the output mode of the stream: `complete` unless said otherwise."""


@pytest.fixture(params=["batch", "stream"])
def run_over(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> RunOver:
    """Run a transform over rows, as a batch and as a stream: one test body for both."""

    def as_batch(
        rows: DataFrame, transform: Callable[[DataFrame], DataFrame], _mode: str = ""
    ) -> list[dict[str, object]]:
        return [row.asDict(recursive=True) for row in transform(rows).collect()]

    def as_stream(
        rows: DataFrame, transform: Callable[[DataFrame], DataFrame], mode: str = "complete"
    ) -> list[dict[str, object]]:
        rows.write.parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
        (
            transform(stream)
            .writeStream.format("memory")
            .queryName("result")
            .outputMode(mode)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        return [row.asDict(recursive=True) for row in spark.table("result").collect()]

    return as_stream if request.param == "stream" else as_batch
