"""Real Spark under a walk: run a query, stop it in the middle of a batch, see what it left."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.checkpoint import Checkpoint
from ebbtide.errors import first_line
from ebbtide.state import parts, read_state, take
from tests import cells
from tests.walk import model

COLUMNS = "unit INT, id STRING, key STRING, value INT, at TIMESTAMP"
APP = "walker"
KILLS = ("source", "output", "commit")
"""Where a batch dies: as it reads, as it writes, or just before its commit."""
WAIT_SECONDS = 1.0
ROW = pa.schema([("row", pa.string())])


@dataclass
class Driver:
    """Runs the queries of one case in a folder; all checkpoints read the same input."""

    spark: SparkSession
    folder: Path
    case: model.Case
    fed: int = 0
    ledgers: dict[str, dict[int, list[str]]] = field(default_factory=dict)

    @contextmanager
    def configured(self) -> Iterator[None]:
        """The settings of the session for a walk."""
        chosen = {
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.streaming.fileSink.log.compactInterval": "3",
            "spark.sql.streaming.fileSource.log.compactInterval": "3",
            **cells.STORES[self.case.store],
            **cells.LAZY,
        }
        self.spark.sparkContext.setLogLevel("OFF")
        with cells._settings(self.spark, chosen):
            cells.forget_state(self.spark)
            yield
            cells.forget_state(self.spark)
        self.spark.sparkContext.setLogLevel("ERROR")

    def checkpoint(self, name: str) -> Path:
        """Where a checkpoint is."""
        return self.folder / name

    def out(self, sink: str) -> Path:
        """Where a sink is."""
        return self.folder / f"out-{sink}"

    def feed(self, units: int) -> None:
        """More input, for a source that does not make its own."""
        if self.case.source == "files":
            (self.folder / "in").mkdir(exist_ok=True)
            for unit in range(self.fed, self.fed + units):
                rows = [
                    {**row, "at": datetime.fromtimestamp(row["at"] / 1000).astimezone().isoformat()}
                    for row in model.rows_of(unit)
                ]
                hidden = self.folder / "in" / f".{unit:04}.json"
                hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
                os.utime(hidden, (1_756_969_200 + unit,) * 2)
                hidden.rename(hidden.with_name(f"{unit:04}.json"))
        self.fed += units

    def run(
        self, stream: model.Stream, factor: int, units: int, kill: str | None, *, eager: bool
    ) -> int:
        """Run over so many units more; returns the last batch whose output was written."""
        cells.forget_state(self.spark)
        chosen = cells._eager(self.case.store, self.case.operator) if eager else cells.LAZY
        place = self.checkpoint(stream.name)
        with cells._settings(self.spark, chosen):
            self.feed(units)
            is_last = [False] * (units - 1) + [True]
            for last in is_last if self.case.source == "rate" else [True]:
                if not self._run_once(stream, factor, kill if last else None):
                    break
            if eager:
                self._wait_for_snapshots(place)
        cells.forget_state(self.spark)
        wrote = max((n for n, one in self.logs(stream.name).items() if one.committed), default=-1)
        if kill == "commit" and wrote >= 0 and max(self.logs(stream.name)) == wrote:
            for path in (place / f"commits/{wrote}", place / f"commits/.{wrote}.crc"):
                path.unlink(missing_ok=True)
        return wrote

    def _run_once(self, stream: model.Stream, factor: int, kill: str | None) -> bool:
        writer = self.write(stream, factor, kill)
        place = str(self.checkpoint(stream.name))
        query = writer.option("checkpointLocation", place).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "killed" not in str(error):
                raise
            return False
        finally:
            query.stop()
        return True

    def _wait_for_snapshots(self, place: Path) -> None:
        end = time.monotonic() + WAIT_SECONDS
        before: dict[Path, set[int]] = {}
        while time.monotonic() < end:
            there = cells.snapshots_in(place)
            if there and there == before and all(there.values()):
                break
            before = there
            time.sleep(0.15)

    def write(self, stream: model.Stream, factor: int, kill: str | None = None) -> DataStreamWriter:
        """The query, ready to start; `factor` is the version of its code."""
        streams = [self._read(factor, kill) for _ in range(1 + (self.case.operator == "join"))]
        mode = self.case.query.mode(self.case.sink)
        rows = BUILDS[self.case.operator](streams, mode)
        row: Column = F.to_json(F.struct("*"))
        if kill == "output":
            row = F.when(F.length(row) > 0, F.raise_error(F.lit("killed"))).otherwise(row)
        writer = rows.select(row.alias("row")).writeStream.outputMode(mode)
        match self.case.sink:
            case "delta":
                return writer.format("delta").option("path", str(self.out(stream.sink)))
            case "files":
                return writer.format("json").option("path", str(self.out(stream.sink)))
        return writer.foreachBatch(lambda batch, number: self._keep(stream, batch, number))

    def _keep(self, stream: model.Stream, batch: DataFrame, number: int) -> None:
        rows = [row["row"] for row in batch.collect()]
        if self.case.sink == "ledger":
            self.ledgers.setdefault(stream.sink, {})[number] = rows
            return
        path = str(self.out(stream.sink))
        table = DeltaTable(path) if DeltaTable.is_deltatable(path) else None
        if table is None or (table.transaction_version(APP) or -1) < number:
            self._append(path, rows, CommitProperties(app_transactions=[Transaction(APP, number)]))

    def _append(self, path: str, rows: list[str], more: CommitProperties | None = None) -> None:
        data = pa.Table.from_pylist([{"row": row} for row in rows], ROW)
        write_deltalake(path, data, mode="append", commit_properties=more)

    def write_as_other(self, stream: model.Stream, text: str) -> None:
        """Another writer adds a row to the table."""
        self._append(str(self.out(stream.sink)), [text])

    def optimize(self, stream: model.Stream) -> None:
        """Compact the table."""
        DeltaTable(str(self.out(stream.sink))).optimize.compact()

    def _read(self, factor: int, kill: str | None) -> DataFrame:
        reader = self.spark.readStream
        if self.case.source == "files":
            folder = self.folder / "in"
            folder.mkdir(exist_ok=True)
            rows = reader.schema(COLUMNS).option("maxFilesPerTrigger", 1).json(str(folder))
        else:
            options = {"rowsPerBatch": 3, "startTimestamp": model.MORNING, "numPartitions": 1}
            rows = reader.format("rate-micro-batch").options(**options).load()
            rows = rows.selectExpr(*_COMPUTED).selectExpr(*_NAMED)
        value = F.col("value") * factor
        if kill == "source":
            last = F.col("unit") == self.fed - 1 if self.case.source == "files" else F.lit(True)
            # on a column, so that it is not evaluated as rows are sorted out
            death = F.raise_error(F.lit("killed")).cast("int")
            value = F.when(last & (F.col("value") >= 0), death).otherwise(value)
        rows = rows.withColumn("value", value).drop("unit")
        return rows.withWatermark("at", "20 minutes") if self.case.query.marked else rows

    def logs(self, name: str) -> dict[int, model.Logged]:
        """What the logs of a checkpoint say, read without Ebbtide."""
        place = self.checkpoint(name)
        logs = {}
        for number in _ids(place / "offsets"):
            _, metadata, *offsets = (place / f"offsets/{number}").read_text().splitlines()
            (end,) = {self._end(place, source, json.loads(o)) for source, o in enumerate(offsets)}
            watermark = json.loads(metadata)["batchWatermarkMs"]
            committed = (place / f"commits/{number}").exists()
            logs[number] = model.Logged(end, watermark, committed)
        return logs

    def planned_at(self, name: str) -> dict[int, int]:
        """When each batch was planned."""
        place = self.checkpoint(name) / "offsets"
        texts = {number: (place / str(number)).read_text() for number in _ids(place)}
        return {n: json.loads(t.splitlines()[1])["batchTimestampMs"] for n, t in texts.items()}

    def _end(self, place: Path, source: int, offset: dict[str, int]) -> int:
        if self.case.source == "rate":
            return offset["offset"] // 3
        files = set()
        for path in (place / f"sources/{source}").iterdir():
            for line in path.read_text().splitlines()[1:] if path.name[0] != "." else ():
                entry = json.loads(line)
                if entry["batchId"] <= offset["logOffset"]:
                    files.add(entry["path"])
        return len(files)

    def rows(self, stream: model.Stream) -> list[str]:
        """What a reader of the table or the folder sees."""
        path = self.out(stream.sink)
        if self.case.sink == "files":
            if not path.exists():
                return []
            try:
                found = self.spark.read.schema("row STRING").json(str(path)).collect()
            except (PySparkException, Py4JError) as error:
                raise AssertionError(f"Spark cannot read {path}: {first_line(error)}") from None
            texts = [row["row"] for row in found]
        elif DeltaTable.is_deltatable(str(path)):
            texts = DeltaTable(str(path)).to_pyarrow_table()["row"].to_pylist()
        else:
            texts = []
        return sorted(map(_normal, texts))

    def ledger(self, stream: model.Stream) -> dict[int, list[str]]:
        """What foreachBatch was given, by batch."""
        kept = self.ledgers.get(stream.sink, {})
        return {number: sorted(map(_normal, rows)) for number, rows in kept.items()}

    def state(self, checkpoint: Checkpoint) -> list[dict[str, Any]]:
        """Every row of the state after the last committed batch; both sides of a join."""
        latest = checkpoint.logs.latest_committed
        assert latest is not None
        rows = []
        for part in parts.list_parts(checkpoint):
            if part.store is None:
                found = take(read_state(self.spark, checkpoint, part, latest.id), 0)
                rows += [{**entry.key, **entry.value, "side": part.side} for entry in found.first]
        cells.forget_state(self.spark)
        return rows


def _ids(folder: Path) -> list[int]:
    names = [path.name for path in folder.iterdir()] if folder.exists() else []
    return sorted(int(name) for name in names if name.isdigit())


def _normal(text: str) -> str:
    return model.as_text(json.loads(text))


_KEYS = ", ".join(f"'{key}'" for key in model.KEYS)
_LAGS = ", ".join(map(str, model.LAGS))
_LAG = f"element_at(array({_LAGS}), cast((own * 5 + place * 3 + own div 4) % 4 AS INT) + 1)"
_COMPUTED = (
    "cast(value div 3 AS INT) AS unit",
    "cast(value % 3 AS INT) AS place",
    "cast(value div 3 AS INT) - if(value div 3 % 3 = 2, 1, 0) AS own",
)
_NAMED = (
    "unit",
    "concat(own, '-', place) AS id",
    f"element_at(array({_KEYS}), cast((own * place + own div 2) % 3 AS INT) + 1) AS key",
    "1 + 5 * own + place AS value",
    f"timestamp_millis({model.MORNING} + {model.MINUTE} * (5 * own - {_LAG})) AS at",
)


def _clock(column: str) -> Column:
    return F.date_format(column, "HH:mm:ss").alias(column.rpartition(".")[2])


def _totals() -> tuple[Column, Column]:
    return F.sum("value").alias("total"), F.count("*").alias("rows")


def _sum_windows(streams: list[DataFrame], _mode: str) -> DataFrame:
    sums = streams[0].groupBy(F.window("at", "10 minutes"), "key").agg(*_totals())
    return sums.select(_clock("window.start"), "key", "total", "rows")


def _drop_repeats(streams: list[DataFrame], _mode: str) -> DataFrame:
    once = streams[0].dropDuplicates(["id", "at"])
    return once.select("id", "key", "value", _clock("at"))


def _sum_sessions(streams: list[DataFrame], _mode: str) -> DataFrame:
    sums = streams[0].groupBy(F.session_window("at", "7 minutes"), "key").agg(*_totals())
    start, end = _clock("session_window.start"), _clock("session_window.end")
    return sums.select(start, end, "key", "total", "rows")


def _join(streams: list[DataFrame], _mode: str) -> DataFrame:
    left, right = streams
    right = right.select(*(F.col(name).alias(f"other_{name}") for name in right.columns))
    near = "other_at BETWEEN at - INTERVAL 10 MINUTES AND at + INTERVAL 10 MINUTES"
    pairs = left.join(right, F.expr(f"key = other_key AND {near}"))
    return pairs.select("id", "key", "value", F.col("other_id").alias("other"), "other_value")


def _sum_by_hand(streams: list[DataFrame], mode: str) -> DataFrame:
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    # inside the function, so that it travels to the workers by value
    class Sums(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.sums = handle.getValueState("sums", "total BIGINT, rows BIGINT")

        def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803, ARG002
            import pandas as pd  # type: ignore[import-untyped]

            total, count = self.sums.get() or (0, 0)
            for frame in rows:
                total, count = total + int(frame["value"].sum()), count + len(frame)
            self.sums.update((total, count))
            yield pd.DataFrame({"key": [key[0]], "total": [total], "rows": [count]})

        def close(self) -> None:
            pass

    schema = "key STRING, total BIGINT, rows BIGINT"
    keyed = streams[0].select("key", "value").groupBy("key")
    return keyed.transformWithStateInPandas(Sums(), schema, mode.capitalize(), "None")


BUILDS: dict[str, Callable[[list[DataFrame], str], DataFrame]] = {
    "aggregation": lambda streams, _mode: streams[0].groupBy("key").agg(*_totals()),
    "windowed": _sum_windows,
    "deduplication": _drop_repeats,
    "join": _join,
    "session": _sum_sessions,
    "tws": _sum_by_hand,
    "none": lambda streams, _mode: streams[0].select("id", "key", "value"),
}
