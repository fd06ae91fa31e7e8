"""A range of offsets in, its broken records in the dead letters out: each once, whatever is killed.

A clean batch costs nothing here. When a batch's progress counts broken records, its range is read
again and they are written. The cursor, kept in the checkpoint, says up to where that is done; what
lies between it and the last commit when a run starts is read again, and what an earlier run wrote
already is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.checkpoint import log_files, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka.spark import options, read_range
from ebbtide.connectors.spark import Decoder
from ebbtide.errors import EbbtideError
from ebbtide.notes import read_note, write_note
from ebbtide.pipeline import Delta, Kafka, Pipeline
from ebbtide.storage import Folder

Offsets = Mapping[int, int]
TOPIC_CONFIG = {"max.message.bytes": str(16 * 1024 * 1024)}
"""A dead letter is its record plus a few headers, so it may be larger than any record."""
_NOTE = "dead-letters.json"
_SAVE_EVERY_SECONDS = 10
_POSITION = ("topic", "partition", "offset")


@dataclass(frozen=True)
class Cursor:
    """Up to which offset of the source the dead letters are complete."""

    done: dict[int, int] = field(default_factory=dict)
    """Per partition; one that is missing starts where the query did."""
    written: dict[int, int] = field(default_factory=dict)
    """The ends of the dead-letter topic at that moment; a missing one means its beginning."""
    replayed: dict[int, int] = field(default_factory=dict)
    """After a rewind: up to where an earlier timeline may have written them already."""


class DeadLetters:
    """Keeps the dead letters of one running query complete."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        decoder: Decoder,
        settings: Settings,
        folder: Folder,
        warn: Callable[[str], None],
    ) -> None:
        assert isinstance(pipeline.source, Kafka)
        self._spark, self._pipeline, self._source = spark, pipeline, pipeline.source
        self._decoder, self._settings, self._folder = decoder, settings, folder
        self._warn = warn
        self._sink = pipeline.dead_letter_sink
        self._cursor = Cursor()
        self._saved = 0.0

    def recover(self) -> int:
        """Finish what an earlier run left: returns how many dead letters that were."""
        committed = _committed_offsets(self._folder, self._source.topic)
        note = read_note(self._folder, _NOTE)
        if note is None:
            # a checkpoint that something else began: what it has read was its to judge
            self._cursor = Cursor(done=committed)
        else:
            self._cursor = Cursor(*(_by_partition(note[f.name]) for f in fields(Cursor)))
            done = self._cursor.done
            if any(committed.get(p, 0) < offset for p, offset in done.items()):
                # rewound: the replay judges anew, and every earlier dead letter counts
                self._cursor = Cursor(committed, replayed={**self._cursor.replayed, **done})
        self._save()
        return self._write(committed, after_failure=True)

    def follow(self, end: Mapping[str, Any] | None, *, clean: bool) -> None:
        """Go on to where a batch has read; `clean` says that it had no broken record."""
        offsets = topic_offsets(json.dumps(end) if end else None, self._source.topic)
        if clean:
            self.pass_clean(offsets)
        else:
            self.write(offsets)

    def pass_clean(self, end: Offsets) -> None:
        """Note that everything up to `end` is in order; saved now and then."""
        self._cursor = replace(self._cursor, done={**self._cursor.done, **end})
        if time.monotonic() - self._saved > _SAVE_EVERY_SECONDS:
            self._save()

    def write(self, end: Offsets) -> None:
        """Write the broken records between the cursor and `end`."""
        self._write(end, after_failure=False)

    def _write(self, end: Offsets, *, after_failure: bool) -> int:
        try:
            return self._copy(end, after_failure=after_failure)
        except PySparkException as error:
            raise EbbtideError(
                f"The dead letters of {self._pipeline.name} cannot be written: "
                f"{str(error).strip().splitlines()[0]}",
                "Nothing is lost: the next start writes them.",
            ) from None

    def _copy(self, end: Offsets, *, after_failure: bool) -> int:
        """Write the broken records between the cursor and `end`; after a failure, say how many.

        Steps: **1** the range that is still there; **2** its broken records; **3** without those
        that are written already (after a failure or a rewind); **4** write; **5** move the cursor.
        """
        # 1
        start = self._retained_start(end)
        end = {p: offset for p, offset in end.items() if offset > start[p]}
        if not end:
            return 0
        # 2
        raw = read_range(self._spark, self._source, self._settings, start, end)
        letters = self._decoder.broken(raw)
        # 3
        replayed = self._cursor.replayed
        unsure = after_failure or any(start[p] < replayed.get(p, 0) for p in end)
        if unsure:
            letters = self._unwritten(letters)
        # 4
        if count := letters.count() if unsure else 1:
            self._append(letters)
        # 5: during a replay every dead letter from the beginning stays in question
        done = {**self._cursor.done, **end}
        past = all(done.get(p, 0) >= offset for p, offset in replayed.items())
        written = self._written_ends() if past else {}
        self._cursor = Cursor(done, written, {} if past else replayed)
        self._save()
        return count

    def close(self) -> None:
        """Save the cursor as it stands."""
        self._save()

    def _save(self) -> None:
        write_note(self._folder, _NOTE, asdict(self._cursor))
        self._saved = time.monotonic()

    def _retained_start(self, end: Offsets) -> dict[int, int]:
        first = _first_offsets(self._folder, self._source.topic)
        start = {p: self._cursor.done.get(p, first.get(p, 0)) for p in end}
        if all(start[p] >= end[p] for p in end):
            return start
        retained = broker.retained_offsets(self._settings.kafka, self._source.topic)
        for p, (earliest, _) in retained.items():
            if p in start and start[p] < min(earliest, end[p]):
                self._warn(
                    f"{min(earliest, end[p]) - start[p]} records of {self._source.topic} "
                    f"partition {p} are no longer in Kafka, so broken ones among them "
                    "cannot be set aside."
                )
                start[p] = min(earliest, end[p])
        return start

    def _unwritten(self, letters: DataFrame) -> DataFrame:
        if isinstance(self._sink, Delta):
            path = self._settings.table(self._sink.path)
            if not _is_table(self._spark, path):
                return letters
            written = self._spark.read.format("delta").load(path).select(*_POSITION)
            return letters.join(written, list(_POSITION), "left_anti")
        ends = self._written_ends()
        starts = {p: self._cursor.written.get(p, 0) for p in ends}
        if starts == ends:
            return letters
        earliest = broker.retained_offsets(self._settings.kafka, self._sink.topic)
        starts = {p: max(offset, earliest[p][0]) for p, offset in starts.items()}
        written = read_range(self._spark, self._sink, self._settings, starts, ends)
        keys = written.select(F.col("key").cast("string").alias("written_key"))
        return letters.join(keys, _key() == keys["written_key"], "left_anti")

    def _written_ends(self) -> dict[int, int]:
        if isinstance(self._sink, Delta):
            return {}
        retained = broker.retained_offsets(self._settings.kafka, self._sink.topic)
        return {p: latest for p, (_, latest) in retained.items()}

    def _append(self, letters: DataFrame) -> None:
        if isinstance(self._sink, Delta):
            rows = letters.drop("timestampType").withColumn("pipeline", F.lit(self._pipeline.name))
            path = self._settings.table(self._sink.path)
            rows.write.format("delta").mode("append").options(**self._sink.options).save(path)
            return
        (
            letters.select(
                _key().alias("key"), "value", _headers(self._pipeline.name).alias("headers")
            )
            .write.format("kafka")
            .option("topic", self._sink.topic)
            .option("kafka.max.request.size", TOPIC_CONFIG["max.message.bytes"])
            .options(**options(self._sink, self._settings))
            .save()
        )


def _key() -> Column:
    return F.to_json(F.struct(*_POSITION))


def _headers(pipeline: str) -> Column:
    """The record's own headers, then ours: why, whose, and where it came from."""
    ours = {
        "ebbtide-reason": F.col("reason"),
        "ebbtide-pipeline": F.lit(pipeline),
        "ebbtide-topic": F.col("topic"),
        "ebbtide-partition": F.col("partition"),
        "ebbtide-offset": F.col("offset"),
        "ebbtide-timestamp-ms": F.unix_millis("timestamp"),
        "ebbtide-key": F.col("key"),
    }
    added = [
        F.struct(F.lit(name).alias("key"), value.cast("string").cast("binary").alias("value"))
        for name, value in ours.items()
    ]
    return F.concat(F.coalesce("headers", F.array()), F.array(*added))


def _by_partition(offsets: Mapping[str, int]) -> dict[int, int]:
    """JSON has only strings for keys."""
    return {int(partition): offset for partition, offset in offsets.items()}


def _is_table(spark: SparkSession, path: str) -> bool:
    from delta import DeltaTable

    return bool(DeltaTable.isDeltaTable(spark, path))


def _committed_offsets(folder: Folder, topic: str) -> dict[int, int]:
    if folder.read("metadata") is None:
        return {}
    batch = read_logs(folder).latest_committed
    return {} if batch is None else topic_offsets(batch.offsets.sources[0], topic)


def topic_offsets(offset: str | None, topic: str) -> dict[int, int]:
    """The partitions of one topic in a Kafka offset."""
    return {} if not offset else log_files.parse_kafka_offset(offset).get(topic, {})


def _first_offsets(folder: Folder, topic: str) -> dict[int, int]:
    """Where the query began, as Spark's Kafka source noted it: a NUL byte, `v1`, then JSON."""
    text = folder.read("sources", "0", "0")
    if text is None:
        return {}
    return topic_offsets(json.dumps(json.loads(text.lstrip("\0").split("\n", 1)[1])), topic)
