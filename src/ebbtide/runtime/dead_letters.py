"""Write each broken record to the dead letters exactly once, whatever is killed.

A clean batch costs nothing here. When a batch's progress counts broken records, its range is read
again and they are written. The cursor, stored in the checkpoint, says up to where that is done.
When a run starts, the range between the cursor and the last commit is read again, and what an
earlier run has written already is left out.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from ebbtide.checkpoint import log_files, read_logs
from ebbtide.config import Settings
from ebbtide.connectors import kafka as broker
from ebbtide.connectors.kafka import spark as kafka_spark
from ebbtide.connectors.spark import Decoder, open_dead_letter_sink
from ebbtide.errors import CheckpointError, EbbtideError, first_line
from ebbtide.notes import read_note, write_note
from ebbtide.pipeline import Kafka, Pipeline
from ebbtide.runtime.failures import Outages
from ebbtide.storage import Folder

Offsets = Mapping[int, int]
_NOTE = "dead-letters.json"
_SAVE_EVERY_SECONDS = 10


@dataclass(frozen=True)
class Cursor:
    """Up to which offsets of the source the dead letters are complete."""

    done: dict[int, int] = field(default_factory=dict)
    """By partition; one that is missing starts where the query did."""
    written: dict[int, int] = field(default_factory=dict)
    """The ends of the dead-letter topic at that moment; one that is missing is its beginning."""
    replayed: dict[int, int] = field(default_factory=dict)
    """After a rewind: up to where an earlier timeline may have written them already."""


class DeadLetters:
    """Completes the dead letters of one running query."""

    def __init__(
        self,
        spark: SparkSession,
        pipeline: Pipeline,
        decoder: Decoder,
        settings: Settings,
        folder: Folder,
        warn: Callable[[str], None],
        outages: Outages,
    ) -> None:
        self._spark, self._pipeline = spark, pipeline
        self._source = cast(Kafka, pipeline.source)  # nothing else is decoded
        self._decoder, self._settings, self._folder = decoder, settings, folder
        self._warn, self._outages = warn, outages
        self._sink = open_dead_letter_sink(spark, pipeline, settings)
        self._cursor = Cursor()
        self._tried = 0.0
        self._first: dict[int, int] = {}

    def recover(self) -> int:
        """Write what an earlier run left undone; returns the number of dead letters."""
        committed = _committed_offsets(self._folder, self._source.topic)
        note = read_note(self._folder, _NOTE)
        if note is None:
            # begun by another program, which has judged what it has read
            self._cursor = Cursor(done=committed)
        else:
            self._cursor = Cursor(*(_by_partition(note[f.name]) for f in fields(Cursor)))
            done = self._cursor.done
            if any(committed.get(p, 0) < offset for p, offset in done.items()):
                # rewound: the replay decides again, and every earlier dead letter counts
                self._cursor = Cursor(committed, replayed={**self._cursor.replayed, **done})
        self._write_note()
        return self.write(committed, after_failure=True)

    def offsets(self, end: Any) -> dict[int, int]:
        """The end of a batch, as its progress has it, by partition."""
        return _topic_offsets(json.dumps(end) if end else None, self._source.topic)

    def pass_clean(self, end: Offsets) -> None:
        """Move the cursor over a range without broken records; saved now and then."""
        self._cursor = replace(self._cursor, done={**self._cursor.done, **end})
        if time.monotonic() - self._tried > _SAVE_EVERY_SECONDS:
            self.save()

    def write(self, end: Offsets, *, after_failure: bool = False) -> int:
        """Write the broken records between the cursor and `end`; after a failure, count them."""
        try:
            return self._copy(end, after_failure=after_failure)
        except PySparkException as error:
            raise EbbtideError(
                f"The dead letters of {self._pipeline.name} cannot be written: {first_line(error)}",
                "Nothing is lost: the next start writes them.",
            ) from None

    def _copy(self, end: Offsets, *, after_failure: bool) -> int:
        """The steps of `write`.

        **1** the range that is still retained; **2** its broken records; **3** without those
        that are written already (after a failure or a rewind); **4** write; **5** move the cursor.
        """
        # 1
        start = self._retained_start(end)
        end = {p: offset for p, offset in end.items() if offset > start[p]}
        if not end:
            return 0
        # 2
        raw = kafka_spark.read_range(self._spark, self._source, self._settings, start, end)
        letters = self._decoder.broken(raw)
        # 3
        replayed = self._cursor.replayed
        unsure = after_failure or any(start[p] < replayed.get(p, 0) for p in end)
        if unsure:
            letters = self._sink.without_written(letters, self._cursor.written)
        # 4
        if count := letters.count() if unsure else 1:
            self._sink.append(letters)
        # 5: during a replay any dead letter, from the first one on, may be a repeat
        done = {**self._cursor.done, **end}
        past = all(done.get(p, 0) >= offset for p, offset in replayed.items())
        written = self._sink.ends() if past else {}
        self._cursor = Cursor(done, written, {} if past else replayed)
        self.save()
        return count

    def save(self) -> None:
        """Save the cursor; if that fails, a later call does.

        Nothing is lost or doubled then: the next start reads again what comes after the saved
        cursor, and leaves out what has been written since.
        """
        self._tried = time.monotonic()
        with self._outages.tolerate("The cursor of the dead letters"):
            self._write_note()

    def _write_note(self) -> None:
        write_note(self._folder, _NOTE, asdict(self._cursor))

    def _retained_start(self, end: Offsets) -> dict[int, int]:
        if not self._first:  # it never changes, and the store may not answer for a while
            self._first = _first_offsets(self._folder, self._source.topic)
        start = {p: self._cursor.done.get(p, self._first.get(p, 0)) for p in end}
        if all(start[p] >= end[p] for p in end):
            return start
        connection = self._settings.connect(self._source.connection)
        retained = broker.retained_offsets(connection, self._source.topic)
        for p, (earliest, _) in retained.items():
            if p in start and start[p] < min(earliest, end[p]):
                self._warn(
                    f"{min(earliest, end[p]) - start[p]} records of {self._source.topic} "
                    f"partition {p} are no longer in Kafka, so broken ones among them "
                    "cannot be set aside."
                )
                start[p] = min(earliest, end[p])
        return start


def _by_partition(offsets: Mapping[str, int]) -> dict[int, int]:
    """Offsets from JSON, whose keys are strings."""
    return {int(partition): offset for partition, offset in offsets.items()}


def _committed_offsets(folder: Folder, topic: str) -> dict[int, int]:
    if folder.read("metadata") is None:
        return {}
    batch = read_logs(folder).latest_committed
    return {} if batch is None else _topic_offsets(batch.offsets.sources[0], topic)


def _topic_offsets(offset: str | None, topic: str) -> dict[int, int]:
    return {} if not offset else log_files.parse_kafka_offset(offset).get(topic, {})


def _first_offsets(folder: Folder, topic: str) -> dict[int, int]:
    """Where the query began, as Spark's Kafka source stores it: a NUL byte, `v1`, then JSON."""
    text = folder.read("sources", "0", "0")
    if text is None:
        return {}
    try:
        first = log_files.parse_kafka_offset(log_files.parse_initial_offset(text) or "")
    except ValueError:
        raise CheckpointError(
            f"{folder.path('sources/0/0')} does not say where the query began.",
            "Put it back from a copy of the checkpoint.",
        ) from None
    return first.get(topic, {})
