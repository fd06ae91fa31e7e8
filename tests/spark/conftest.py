from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, SparkSession

from ebbtide.config import Settings
from ebbtide.spark import build_session
from tests import cells


@pytest.fixture(scope="session")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return Settings(home=tmp_path_factory.mktemp("home"))


@pytest.fixture(scope="session")
def spark(settings: Settings) -> Iterator[SparkSession]:
    """One session for all tests with Spark."""
    # less compiling, which only a long-lived session would repay: half the CPU time
    conf = {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"}
    session = build_session("tests", settings, master="local[2]", conf=conf)
    yield session
    session.stop()


@pytest.fixture
def fresh_stores(spark: SparkSession) -> Iterator[None]:
    """Nothing of other tests' state, and nothing of ours for them."""
    cells.forget_state(spark)
    yield
    cells.forget_state(spark)


RunOver = Callable[[DataFrame, Callable[[DataFrame], DataFrame]], list[dict[str, object]]]


@pytest.fixture(params=["batch", "stream"])
def run_over(request: pytest.FixtureRequest, spark: SparkSession, tmp_path: Path) -> RunOver:
    """Run a transform over rows, as a batch and as a stream: one test body for both."""

    def as_batch(
        rows: DataFrame, transform: Callable[[DataFrame], DataFrame]
    ) -> list[dict[str, object]]:
        return [row.asDict(recursive=True) for row in transform(rows).collect()]

    def as_stream(
        rows: DataFrame, transform: Callable[[DataFrame], DataFrame]
    ) -> list[dict[str, object]]:
        rows.write.parquet(str(tmp_path / "in"))
        stream = spark.readStream.schema(rows.schema).parquet(str(tmp_path / "in"))
        (
            transform(stream)
            .writeStream.format("memory")
            .queryName("result")
            .outputMode("complete")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
            .awaitTermination()
        )
        return [row.asDict(recursive=True) for row in spark.table("result").collect()]

    return as_stream if request.param == "stream" else as_batch
