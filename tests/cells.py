"""A store, a query and input files in; the rows of a real Spark query and its checkpoint out.

Imports pyspark and the standard library only, so that any Spark of 3.5 or later can run it:

    python tests/cells.py run --query windowed --store hdfs --input in --checkpoint cp \\
        --files 0:7 --wrong --snapshots --out old.json
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

STATE = "spark.sql.streaming.stateStore."
PROVIDERS = "org.apache.spark.sql.execution.streaming.state."
HDFS = {f"{STATE}providerClass": f"{PROVIDERS}HDFSBackedStateStoreProvider"}
ROCKSDB = {f"{STATE}providerClass": f"{PROVIDERS}RocksDBStateStoreProvider"}
CHANGELOG = {**ROCKSDB, f"{STATE}rocksdb.changelogCheckpointing.enabled": "true"}
STORES: dict[str, dict[str, str]] = {
    "hdfs": HDFS,
    "rocksdb": {**ROCKSDB, f"{STATE}rocksdb.changelogCheckpointing.enabled": "false"},
    "changelog": CHANGELOG,
    "v2": {**CHANGELOG, f"{STATE}checkpointFormatVersion": "2"},
}
EAGER = {f"{STATE}maintenanceInterval": "50ms"}
LAZY = {f"{STATE}maintenanceInterval": "1h", f"{STATE}minDeltasForSnapshot": "1000"}

SCHEMA = "n INT, id STRING, key STRING, value INT, lag INT, at TIMESTAMP"
MORNING = datetime(2025, 9, 4, 7, tzinfo=timezone.utc)
RARE = "zoe"
KEYS = ("ann", "bob", "cyd", "dan", "eve", RARE)
LAGS = (0, 10, 20)
DELAY = "30 minutes"
WRONG_FROM = 3
"""The wrong logic goes wrong with the rows of this file and of all later ones."""

WAIT_SECONDS = 30

Row = dict[str, Any]
Rows = list[tuple[int, Row]]
"""Each row with the batch that wrote it."""


@dataclass(frozen=True)
class Query:
    """One kind of stateful query: how it is built, and what its rows mean."""

    build: Callable[[list[DataFrame]], DataFrame]
    mode: str = "append"
    sources: int = 1
    key: tuple[str, ...] = ()
    partitions: int = 2

    def result(self, rows: Rows) -> list[Row]:
        """What a reader of the sink sees: the last row of each key, or all rows when appended."""
        if self.mode == "append":
            seen = [row for _, row in rows]
        else:
            seen = list({tuple(row[name] for name in self.key): row for _, row in rows}.values())
        return sorted(seen, key=lambda row: json.dumps(row, sort_keys=True))


@dataclass
class Ran:
    """What one run of a query did: the ids of its batches, and their rows."""

    batches: list[int] = field(default_factory=list)
    rows: Rows = field(default_factory=list)


def result(query: str, runs: Iterable[Ran]) -> list[Row]:
    """What the sink holds after these runs: a batch that runs again undoes all from there on."""
    rows: Rows = []
    for ran in runs:
        rows = [row for row in rows if row[0] < min(ran.batches, default=row[0] + 1)] + ran.rows
    return QUERIES[query].result(rows)


def sum_up(streams: list[DataFrame]) -> DataFrame:
    """Running totals; all state is kept for ever."""
    return streams[0].groupBy("key").agg(*_totals())


def sum_windows(streams: list[DataFrame]) -> DataFrame:
    """Totals of each ten minutes; a window gets rows from about six files."""
    window = F.window("at", "10 minutes")
    sums = _marked(streams[0]).groupBy(window, "key").agg(*_totals())
    return sums.select(_clock("window.start").alias("start"), "key", "total", "rows")


def drop_repeats(streams: list[DataFrame]) -> DataFrame:
    """Each row once, though files repeat rows of half an hour before."""
    once = _marked(streams[0]).dropDuplicates(["id", "at"])
    return once.select("id", "key", "value", _clock("at").alias("at"))


def join_streams(streams: list[DataFrame]) -> DataFrame:
    """Each row with those of half an hour before and after: both sides wait in state."""
    left, right = (_marked(rows.filter("lag = 10")) for rows in streams)
    right = right.select(*(F.col(name).alias(f"other_{name}") for name in right.columns))
    half_hour = "INTERVAL 30 MINUTES"
    near = f"key = other_key AND other_at BETWEEN at - {half_hour} AND at + {half_hour}"
    return left.join(right, F.expr(near)).select("id", "value", "other_id", "other_value")


def sum_sessions(streams: list[DataFrame]) -> DataFrame:
    """Totals of each session; a key's sessions end where a file leaves it out."""
    session = F.session_window("at", "7 minutes")
    sums = _marked(streams[0].filter("lag = 0")).groupBy(session, "key").agg(*_totals())
    start, end = _clock("session_window.start"), _clock("session_window.end")
    return sums.select(start.alias("start"), end.alias("end"), "key", "total", "rows")


def sum_twice(streams: list[DataFrame]) -> DataFrame:
    """Totals of five minutes, summed to totals of twenty: two operators, each with its state."""
    inner = _marked(streams[0]).groupBy(F.window("at", "5 minutes"), "key").agg(*_totals())
    outer = inner.groupBy(F.window("window", "20 minutes"), "key").agg(
        F.sum("total").alias("total"), F.sum("rows").alias("rows")
    )
    return outer.select(_clock("window.start").alias("start"), "key", "total", "rows")


def sum_by_hand(streams: list[DataFrame]) -> DataFrame:
    """Running totals again, kept by Python code with transformWithState."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    # Inside the function, so that it travels to the workers by value: they cannot import us.
    class Sums(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.sums = handle.getValueState("sums", "total BIGINT, rows BIGINT")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: ARG002, N803
        ) -> Iterator[Any]:
            import pandas as pd  # type: ignore[import-untyped]

            total, count = self.sums.get() or (0, 0)
            for frame in rows:
                total, count = total + int(frame["value"].sum()), count + len(frame)
            self.sums.update((total, count))
            yield pd.DataFrame({"key": [key[0]], "total": [total], "rows": [count]})

        def close(self) -> None:
            pass

    return (
        streams[0]
        .select("key", "value")
        .groupBy("key")
        .transformWithStateInPandas(
            Sums(), "key STRING, total BIGINT, rows BIGINT", "Update", "None"
        )
    )


def _totals() -> tuple[Any, Any]:
    return F.sum("value").alias("total"), F.count("*").alias("rows")


def _clock(column: str) -> Any:
    return F.date_format(column, "HH:mm:ss")


def _marked(rows: DataFrame) -> DataFrame:
    return rows.withWatermark("at", DELAY)


BY_KEY = ("key",)
QUERIES: dict[str, Query] = {
    "aggregation": Query(sum_up, "update", key=BY_KEY),
    "windowed": Query(sum_windows, "update", key=("start", "key")),
    "deduplication": Query(drop_repeats),
    "join": Query(join_streams, sources=2),
    "session": Query(sum_sessions),
    "chained": Query(sum_twice),
    "tws": Query(sum_by_hand, "update", key=BY_KEY),
    "partitions": Query(sum_up, "update", key=BY_KEY, partitions=5),
}


def allowed(store: str, query: str, version: str = pyspark.__version__) -> bool:
    """Whether that Spark can run that query over that store."""
    spark_4 = int(version.split(".")[0]) >= 4
    if query == "tws":
        return spark_4 and store != "hdfs"
    return store != "v2" or spark_4


def write_input(folder: Path, numbers: Iterable[int]) -> None:
    """The files with these numbers, each once, in the order of their numbers for the source."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in numbers:
        path = folder / f"{number:04}.json"
        if not path.exists():
            hidden = path.with_name(f".{path.name}")
            hidden.write_text("".join(json.dumps(row) + "\n" for row in _file(number)))
            os.utime(hidden, (1_756_969_200 + number,) * 2)
            hidden.rename(path)


def _file(number: int) -> list[Row]:
    """Its own rows, and the fresh rows of half an hour before once more. No row is ever late."""
    earlier = number - 6
    repeated = _own(earlier) if earlier // 10 == number // 10 else []
    return _own(number) + [row for row in repeated if row["lag"] == 0]


def _own(number: int) -> list[Row]:
    # five minutes a file, and a pause after every tenth that closes all windows
    now = MORNING + timedelta(minutes=5 * number + 120 * (number // 10))
    return [
        {
            "n": number,
            "id": f"{number}-{key}-{lag}",
            "key": key,
            "value": 1 + 5 * number + place,
            "lag": lag,
            "at": (now - timedelta(minutes=lag) + timedelta(seconds=place)).isoformat(),
        }
        for place, key in enumerate(KEYS)
        for lag in LAGS
        if _comes(key, number, place)
    ]


def _comes(key: str, number: int, place: int) -> bool:
    """Each key misses some files; the rare one comes with the first wrong file, and long after.

    What it left in state is not touched in between: a wrong value stays there, and is seen.
    """
    return number % 6 == WRONG_FROM % 6 if key == RARE else (number + place) % 4 > 0


def run(
    spark: SparkSession,
    query: str,
    store: str,
    input: Path,  # noqa: A002
    checkpoint: Path | str,
    *,
    wrong: bool = False,
    snapshots: bool = False,
    once: bool = False,
    files_per_batch: int = 1,
    partitions: int | None = None,
    conf: Mapping[str, str] | None = None,
) -> Ran:
    """Run the query over all files that it has not read yet, or for one batch, and end it.

    With `snapshots`, batch 2 ends when each store has a snapshot of version 2, and so on for 4, 6…
    """
    shape = QUERIES[query]
    chosen = {
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(partitions or shape.partitions),
        **STORES[store],
        **(_eager(store, query) if snapshots else LAZY),
        **(conf or {}),
    }
    ran = Ran()

    def keep(batch: DataFrame, number: int) -> None:
        if snapshots:
            _wait_for_snapshots(Path(checkpoint), number - number % 2)
        ran.batches.append(number)
        ran.rows += [(number, row.asDict()) for row in batch.collect()]

    with _settings(spark, chosen):
        streams = [_read(spark, input, files_per_batch, wrong) for _ in range(shape.sources)]
        writer = (
            shape.build(streams)
            .writeStream.outputMode(shape.mode)
            .option("checkpointLocation", str(checkpoint))
            .foreachBatch(keep)
        )
        running = (writer.trigger(once=True) if once else writer.trigger(availableNow=True)).start()
        try:
            running.awaitTermination()
        finally:
            running.stop()
    return ran


def _eager(store: str, query: str) -> dict[str, str]:
    """Snapshots of versions 2, 4, 6…: HDFS wants more deltas than this number, RocksDB as many.

    transformWithState forces one of version 1 as it makes its column families, which would shift
    the others to 3, 5, 7…: it gets one of every version.
    """
    deltas = "1" if store == "hdfs" or query == "tws" else "2"
    return {**EAGER, f"{STATE}minDeltasForSnapshot": deltas}


def _read(spark: SparkSession, folder: Path, files_per_batch: int, wrong: bool) -> DataFrame:
    rows = (
        spark.readStream.schema(SCHEMA)
        .option("maxFilesPerTrigger", files_per_batch)
        .json(str(folder))
    )
    if not wrong:
        return rows
    broken = F.col("n") >= WRONG_FROM
    return rows.withColumn(
        "value", F.when(broken, F.col("value") * 10).otherwise(F.col("value"))
    ).withColumn("id", F.when(broken, F.concat(F.lit("wrong-"), "id")).otherwise(F.col("id")))


@contextmanager
def _settings(spark: SparkSession, chosen: Mapping[str, str]) -> Iterator[None]:
    before = {name: spark.conf.get(name, None) for name in chosen}
    for name, value in chosen.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, old in before.items():
            if old is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, old)


def _wait_for_snapshots(checkpoint: Path, version: int) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while any(max(there, default=0) < version for there in snapshots_in(checkpoint).values()):
        if time.monotonic() > end:
            raise TimeoutError(f"Some store in {checkpoint} has no snapshot of version {version}.")
        time.sleep(0.02)


def snapshots_in(checkpoint: Path) -> dict[Path, set[int]]:
    """Each store, with the versions that it has snapshots of."""
    stores: dict[Path, set[int]] = {}
    for path in checkpoint.glob("state/*/*/**/*"):
        match = re.fullmatch(r"(\d+)(?:_[^.]+)?\.(delta|changelog|snapshot|zip)", path.name)
        if match:
            versions = stores.setdefault(path.parent, set())
            versions |= {int(match[1])} if match[2] in ("snapshot", "zip") else set()
    return stores


def forget_state(spark: SparkSession) -> None:
    """Drop all state stores of this JVM: the next run loads from disk and sets its own pace.

    The maintenance thread goes first, and without the lock: it may be waiting for that lock.
    Spark 4.1 and later.
    """
    jvm: Any = spark._jvm
    stores = getattr(getattr(jvm, f"{PROVIDERS}StateStore$"), "MODULE$")
    stores.stopMaintenanceTaskWithoutLock()
    stores.stop()


def build_session(conf: Mapping[str, str]) -> SparkSession:
    """A small quiet session of whichever pyspark this is."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    builder = SparkSession.builder.master("local[2]").appName("cells")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        # half the CPU time: no query here lives long enough to repay better code
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1",
        "spark.sql.session.timeZone": "UTC",
        **conf,
    }.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def main(words: list[str] | None = None) -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("run", help="run a query over files")
    command.add_argument("--query", required=True, choices=QUERIES)
    command.add_argument("--store", required=True, choices=STORES)
    command.add_argument("--input", required=True, type=Path)
    command.add_argument("--checkpoint", required=True, type=Path)
    command.add_argument("--files", default="0:0", help="first:end, written if not there yet")
    command.add_argument("--files-per-batch", type=int, default=1)
    command.add_argument("--wrong", action="store_true", help=f"wrong from file {WRONG_FROM} on")
    command.add_argument("--snapshots", action="store_true", help="a snapshot of each version")
    command.add_argument("--partitions", type=int)
    command.add_argument("--out", type=Path, help="JSON: the batches and their rows")
    command.add_argument("--conf", action="append", default=[], metavar="NAME=VALUE")
    given = parser.parse_args(words)
    write_input(given.input, range(*map(int, given.files.split(":"))))
    conf = dict(pair.split("=", 1) for pair in given.conf)
    spark = build_session(conf)
    try:
        ran = run(
            spark,
            given.query,
            given.store,
            given.input,
            given.checkpoint,
            wrong=given.wrong,
            snapshots=given.snapshots,
            files_per_batch=given.files_per_batch,
            partitions=given.partitions,
            conf=conf,
        )
    finally:
        spark.stop()
    report = {"spark": pyspark.__version__, "batches": ran.batches, "rows": ran.rows}
    if given.out:
        given.out.write_text(json.dumps(report))
    else:
        json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
