"""The archive of a real topic, written inside the one session: layout, commits, resuming."""

from __future__ import annotations

import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame, SparkSession

from ebbtide import Console, Delta, Kafka, Pipeline
from ebbtide.archive import choice
from ebbtide.archive.commit import TableWriter
from ebbtide.archive.facts import read_archive
from ebbtide.archive.hours import HourSteps
from ebbtide.archive.layout import COLUMNS, WRITE_CONF, properties
from ebbtide.archive.read import open_table, select_range
from ebbtide.archive.runner import ArchiveQuery, run_archive
from ebbtide.archive.write import create_table, to_hours, to_rows, write_hours
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka.admin import list_topics
from ebbtide.connectors.kafka.spark import KafkaStream
from ebbtide.errors import ArchiveError, CheckpointError
from ebbtide.local.broker import temporary_broker
from ebbtide.runtime.stream import BatchReport, PipelineQuery, StreamOptions, StreamResult
from ebbtide.storage import open_folder
from tests import json_records

FAR = (
    *("0001-01-01T00:00:00Z", "0000-12-31T23:59:59Z", "1582-10-10T00:00:00Z"),
    *("9999-12-31T23:59:59.999999Z", "+10000-01-01T00:00:00Z", "1969-12-31T23:59:59.9999999Z"),
)
"""Times at the edges of calendars and of what the archive takes."""
DAY = rb"2025-\d\d-\d\d"
NULL = "__HIVE_DEFAULT_PARTITION__"


@pytest.fixture(scope="module")
def connection() -> Iterator[kafka.KafkaConnection]:
    with temporary_broker() as broker:
        yield broker.connection


@dataclass
class Place:
    """One topic, its pipeline and its home; the name of the test makes them its own."""

    pipeline: Pipeline
    settings: Settings
    reports: list[BatchReport]
    said: list[str]

    @property
    def topic(self) -> str:
        assert isinstance(self.pipeline.source, Kafka)
        return self.pipeline.source.topic

    @property
    def table(self) -> Path:
        return Path(self.settings.table("visits"))

    def send(self, *values: bytes | None, partition: int = 0) -> None:
        with kafka.Sender(self.settings.kafka, self.topic) as sender:
            for value in values:
                sender.send(value, partition=partition)

    def archive(self, checkpoint: Path | None = None, a_batch: int | None = None) -> StreamResult:
        options = StreamOptions(
            None if checkpoint is None else str(checkpoint),
            available_now=True,
            max_offsets_per_trigger=a_batch,
        )
        return run_archive(
            self.pipeline,
            self.settings,
            options,
            on_batch=self.reports.append,
            say=self.said.append,
        )

    def commits(self) -> list[list[dict[str, Any]]]:
        """The actions of each commit of the table."""
        return [
            [json.loads(line) for line in file.read_text().splitlines()]
            for file in sorted((self.table / "_delta_log").glob("*.json"))
        ]

    def operations(self) -> list[str]:
        return [
            action["commitInfo"]["operation"]
            for commit in self.commits()
            for action in commit
            if "commitInfo" in action
        ]


@pytest.fixture
def place(
    spark: SparkSession, one_session: None, connection: kafka.KafkaConnection, tmp_path: Path
) -> Iterator[Place]:
    """A pipeline whose archive is written as `ebbtide archive` has it."""
    del one_session
    topic = tmp_path.name
    kafka.create_missing_topics(connection, [topic])
    pipeline = Pipeline(
        "visits-counter",
        source=Kafka(topic, schema="visit_id INT, event_time TIMESTAMP"),
        event_time="event_time",
        transform=lambda rows: rows,
        sink=Console(),
        archive=Delta("visits"),
    )
    before = {name: spark.conf.get(name, None) for name in WRITE_CONF}
    for name, value in WRITE_CONF.items():
        spark.conf.set(name, value)
    yield Place(pipeline, Settings(home=tmp_path, bootstrap_servers=connection.address), [], [])
    for name, old in before.items():
        spark.conf.unset(name) if old is None else spark.conf.set(name, old)


def event(at: str, visit: object = 1) -> bytes:
    return json.dumps({"visit_id": visit, "event_time": f"2025-09-04T{at}"}).encode()


def at(clock: str) -> datetime:
    return datetime.fromisoformat(f"2025-09-04T{clock}").replace(tzinfo=timezone.utc)


def rows(spark: SparkSession, place: Place) -> list[dict[str, Any]]:
    table = spark.read.format("delta").load(str(place.table)).orderBy("partition", "offset")
    return [row.asDict(recursive=True) for row in table.collect()]


def in_kafka(place: Place) -> list[kafka.Record]:
    retained = kafka.retained_offsets(place.settings.kafka, place.topic)
    ends = {p: end for p, (_, end) in retained.items()}
    found = kafka.consume_range(place.settings.kafka, place.topic, {}, ends)
    return sorted(found, key=lambda record: (record.partition, record.offset))


def exactly_once(spark: SparkSession, place: Place) -> None:
    """The table holds the very records of the topic, each once, byte for byte."""
    assert [
        kafka.Record(
            row["topic"],
            row["partition"],
            row["offset"],
            int(row["timestamp"].timestamp() * 1000),
            _bytes(row["key"]),
            _bytes(row["value"]),
            tuple((h["key"], _bytes(h["value"])) for h in row["headers"] or ()),
        )
        for row in rows(spark, place)
    ] == in_kafka(place)


def _bytes(value: bytearray | None) -> bytes | None:
    return None if value is None else bytes(value)


def test_every_record_as_it_came(spark: SparkSession, place: Place) -> None:
    good, wrong_type = event("07:59:59.999999"), event("08:00:00", visit="x")
    in_ms = b'{"event_time":1756969200000}'  # no calendar has that year
    producer = Producer(place.settings.kafka.client_settings())
    headers: list[tuple[str, str | bytes | None]] = [
        ("trace", b"\xff\x00"),
        ("trace", b"2"),
        ("no", None),
    ]
    for value in (good, wrong_type, b"no json", None, b"", b'{"event_time":null}', in_ms):
        producer.produce(place.topic, value, b"\xfe key", 1, headers=headers)
    producer.flush(60)
    result = place.archive()
    exactly_once(spark, place)
    found = {(row["value"] and bytes(row["value"])): row for row in rows(spark, place)}
    assert {row["event_time"] is None for row in found.values()} == {True, False}
    # only the event time is looked at: a wrong visit_id is for the pipeline to judge
    assert [str(found[value]["event_time"]) for value in (good, wrong_type)] == [
        "2025-09-04 07:59:59.999999",
        "2025-09-04 08:00:00",
    ]
    folders = {file.parent.relative_to(place.table).as_posix() for file in files(place)}
    assert folders == {
        "event_day=2025-09-04/event_hour=7",
        "event_day=2025-09-04/event_hour=8",
        f"event_day={NULL}/event_hour={NULL}",
    }
    archive = read_archive(place.pipeline, place.settings)
    assert (archive.records, archive.unreadable, archive.offsets) == (7, 5, {0: 0, 1: 7})
    assert (result.rows, result.broken) == (7, 5)
    assert result.run_id == place.reports[0].run_id != ""


def files(place: Place) -> list[Path]:
    return list(place.table.glob("event_day=*/*/*.parquet"))


def test_one_commit_a_batch_and_small_files_merged(spark: SparkSession, place: Place) -> None:
    spark.conf.set("spark.databricks.delta.autoCompact.minNumFiles", "3")
    for partition in (0, 1):
        place.send(*(event(f"07:{minute:02d}:00") for minute in range(5)), partition=partition)
    place.archive(a_batch=2)
    assert [report.rows for report in place.reports] == [2] * 5
    data, merged = [], 0
    for commit in place.commits():
        changes = {a[kind]["dataChange"] for a in commit for kind in ("add", "remove") if kind in a}
        if changes == {True}:
            data.append(next(a["txn"]["version"] for a in commit if "txn" in a))
            # however many partitions the topic has, one file an hour
            assert len([a for a in commit if "add" in a]) == 1
        elif changes:
            assert changes == {False}
            merged += 1
    assert data == list(range(5))
    # the first three files, then what became of them with the other two
    assert merged == 2
    archive = read_archive(place.pipeline, place.settings)
    assert (archive.files, archive.records) == (1, 10)
    assert archive.offsets == {0: 5, 1: 5}
    exactly_once(spark, place)


def test_a_range_reads_only_its_files(spark: SparkSession, place: Place) -> None:
    hours = (6, 7, 8, 9, 23)
    place.send(*(event(f"{hour:02d}:{minute}:00") for hour in hours for minute in (10, 40)))
    place.archive()
    archive = read_archive(place.pipeline, place.settings)
    assert archive.files == len(hours)
    # a later batch is not in the version that was pinned
    place.send(event("07:20:00"))
    place.archive()

    def read(start: str, end: str) -> tuple[list[str], int]:
        found = select_range(open_table(spark, archive), at(start), at(end))
        assert found.columns[:4] == ["event_time", "topic", "partition", "offset"]
        clocks = sorted(f"{row.event_time:%H:%M}" for row in found.collect())
        return clocks, files_read(found)

    assert read("07:00", "08:00") == (["07:10", "07:40"], 1)
    assert read("07:10", "07:40") == (["07:10"], 1)
    assert read("07:40", "09:11") == (["07:40", "08:10", "08:40", "09:10"], 3)
    assert read("23:00", "23:10") == ([], 0)
    for start, end in (("07:00", "08:00"), ("07:40", "09:11"), ("23:00", "23:10")):
        assert archive.cost(at(start), at(end)).files == read(start, end)[1]


def files_read(frame: DataFrame) -> int:
    """As Spark counted them while it ran the query."""
    scan = frame._jdf.queryExecution().executedPlan().collectLeaves()
    return sum(scan.apply(i).metrics().apply("numFiles").value() for i in range(scan.size()))


def test_a_lost_checkpoint_loses_and_doubles_nothing(
    spark: SparkSession, place: Place, tmp_path: Path
) -> None:
    place.send(*[event("07:00:00")] * 5)
    place.send(event("07:30:00"), partition=1)
    place.archive()
    checkpoint = place.settings.checkpoint("visits-archive")
    shutil.rmtree(checkpoint)
    place.send(*[event("08:00:00")] * 3)
    place.archive()
    assert "is new and the table holds 6 records: continuing after them." in place.said[-1]
    exactly_once(spark, place)
    # another folder takes over, and the old one may not write any more
    place.send(event("08:30:00"), partition=1)
    place.archive(tmp_path / "other")
    exactly_once(spark, place)
    assert read_archive(place.pipeline, place.settings).checkpoint == str(tmp_path / "other")
    with pytest.raises(ArchiveError, match=r"do not fit: .* an empty folder with --checkpoint"):
        place.archive(checkpoint)
    place.send(event("09:00:00"))
    place.archive(tmp_path / "other")
    exactly_once(spark, place)


def test_event_times_are_laid_out_in_utc(spark: SparkSession, place: Place) -> None:
    place.settings = replace(place.settings, timezone="Asia/Kolkata")
    spark.conf.set("spark.sql.session.timeZone", "Asia/Kolkata")
    try:
        place.send(event("05:45:00"), event("07:00:00Z"))
        place.archive()
        archive = read_archive(place.pipeline, place.settings)
        found = select_range(open_table(spark, archive), at("00:00"), at("01:00"))
        assert [row.offset for row in found.collect()] == [0]
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    hours = [str(row["event_hour"]) for row in rows(spark, place)]
    assert hours == ["0", "7"]
    place.settings = replace(place.settings, timezone="UTC")
    with pytest.raises(ArchiveError, match="Add --timezone Asia/Kolkata"):
        place.archive()


def test_a_table_of_something_else_is_left_alone(spark: SparkSession, place: Place) -> None:
    spark.range(3).write.format("delta").save(str(place.table))
    with pytest.raises(ArchiveError, match="is a Delta table, but no archive of Ebbtide"):
        place.archive()
    assert spark.read.format("delta").load(str(place.table)).count() == 3
    assert not place.settings.checkpoint("visits-archive").exists()


def test_a_topic_that_was_made_anew_is_refused(place: Place) -> None:
    place.send(*[event("07:00:00")] * 5)
    place.archive()
    admin = AdminClient(place.settings.kafka.client_settings())
    admin.delete_topics([place.topic])[place.topic].result(60)
    while place.topic in list_topics(place.settings.kafka):
        pass
    kafka.create_missing_topics(place.settings.kafka, [place.topic])
    place.send(event("07:00:00"))
    with pytest.raises(ArchiveError, match=r"ends at offset 1 of .* up to 5: it is another"):
        place.archive()
    place.pipeline = replace(place.pipeline, archive=Delta("clicks"))
    with pytest.raises(CheckpointError, match="is the checkpoint of pipeline visits-archive"):
        place.archive(place.settings.checkpoint("visits-archive"))


def test_operations(place: Place) -> None:
    """An empty topic makes a table too, and what is done to it has plain names."""
    place.archive()
    place.send(event("07:00:00"))
    place.archive()
    assert (
        Counter(place.operations())["STREAMING UPDATE"] == Counter(place.operations()).total() - 1
    )
    assert place.operations()[0] == "CREATE TABLE"
    kinds: Sequence[str] = [kind for commit in place.commits() for a in commit for kind in a]
    assert kinds.count("add") == 1


def lines_of(table: DeltaTable) -> dict[tuple[Any, Any], tuple[Any, ...]]:
    """What the log says of each hour: records, and what files are skipped by."""
    names = ("event_time", "partition", "offset", "timestamp")
    actions = table.get_add_actions(flatten=True)
    kinds = [f"{kind}.{name}" for kind in ("min", "max", "null_count") for name in names]
    wanted = ["partition.event_day", "partition.event_hour", "num_records", *kinds]
    columns = [actions.column(name).to_pylist() for name in wanted]
    rows = {(day, hour): tuple(rest) for day, hour, *rest in zip(*columns, strict=True)}
    assert len(rows) == actions.num_rows  # one file an hour
    return rows


def test_the_same_table_as_by_delta_itself(spark: SparkSession, place: Place) -> None:
    """Usual, odd and broken records: each has the same row, in the same hour, in both tables."""
    made = [value and re.sub(DAY, b"2025-09-04", value) for value in json_records.records(7, 2_000)]
    values = [*made, None, b"", b"\xff", event("07:00:00")]
    values += [f'{{"event_time":"{at}"}}'.encode() for at in FAR]
    headers = [None, [("no", None)], [("trace", b"\xff"), ("trace", None), ("", b"2")]]
    raw = spark.createDataFrame(
        [
            ("visits", n % 3, n, datetime(2025, 9, 4, 7, n % 60), key, value, headers[n % 3])
            for n, value in enumerate(values)
            for key in [None if n % 2 else b"\xfe"]
        ],
        ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items() if name != "event_time"),
    )
    place.pipeline = replace(place.pipeline, source=Kafka("visits", schema=json_records.SCHEMA))
    path = {name: str(place.settings.home / name) for name in ("delta", "ours")}
    for table in path.values():
        create_table(spark, table, properties(place.pipeline, place.settings, "c"))
    to_rows(raw, place.pipeline).write.format("delta").mode("append").save(path["delta"])
    writer = TableWriter(spark, path["ours"])
    folder = writer.find_folder()
    assert folder == path["ours"]
    steps = HourSteps.of(folder, "visits", spark.version)
    written = write_hours(to_hours(raw, place.pipeline, steps), steps)
    transaction = writer.begin("query", 0)
    assert transaction is not None
    transaction.commit(written)
    assert writer.begin("query", 0) is None

    by_delta, by_us = (spark.read.format("delta").load(path[name]) for name in path)
    assert by_us.schema == by_delta.schema
    assert by_us.count() == by_delta.count() == len(values)
    assert not by_us.exceptAll(by_delta).union(by_delta.exceptAll(by_us)).take(1)
    assert by_us.where("event_time IS NOT NULL").count() > 500
    tables = [DeltaTable(path[name]) for name in path]
    assert lines_of(tables[1]) == lines_of(tables[0])
    # and to a reader that is not Spark
    ours, theirs = (
        QueryBuilder().register("t", table).execute(EACH).read_all() for table in tables
    )
    assert ours.num_rows == len(values)
    assert [ours[n].to_pylist() for n in range(4)] == [theirs[n].to_pylist() for n in range(4)]


EACH = 'SELECT "offset", "value", "event_hour", "key" FROM t ORDER BY "offset"'


def test_an_archive_goes_on_with_either_writer(spark: SparkSession, place: Place) -> None:
    """From Delta's sink to our files and back, and a batch whose end Spark has not noted."""
    checkpoint = place.settings.checkpoint("visits-archive")
    for turn, setting in enumerate(("delta", "auto", "auto", "delta", "auto")):
        place.send(*(event(f"07:{turn}{n}:00") for n in range(5)), b"broken")
        spark.conf.set(choice.SETTING, setting)
        try:
            result = place.archive()
        finally:
            spark.conf.unset(choice.SETTING)
        assert (result.rows, result.broken) == (6, 1)
        if turn == 2:  # killed before it was done: the batch runs again
            (checkpoint / "commits" / str(turn)).unlink()
            (checkpoint / "commits" / f".{turn}.crc").unlink(missing_ok=True)
            assert place.archive().rows in (0, 6)
    exactly_once(spark, place)
    noted = [a["txn"]["version"] for commit in place.commits() for a in commit if "txn" in a]
    assert noted == list(range(5))
    assert set(place.operations()) == {"CREATE TABLE", "STREAMING UPDATE"}
    counts = [
        a["commitInfo"]["operationMetrics"]
        for commit in place.commits()[1:]
        for a in commit
        if "commitInfo" in a
    ]
    assert {(c["numOutputRows"], c["numAddedFiles"], c["numRemovedFiles"]) for c in counts} == {
        ("6", "2", "0")
    }
    names = [file.name for file in files(place)]
    assert len(names) == 10
    assert len([name for name in names if ".zstd." in name]) == 6


def test_a_table_with_other_properties_is_left_to_delta(spark: SparkSession, place: Place) -> None:
    place.send(event("07:00:00"))
    place.archive()
    table = f"delta.`{place.table}`"
    spark.sql(f"ALTER TABLE {table} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")
    place.send(event("08:00:00"))
    place.archive()
    exactly_once(spark, place)
    assert [".zstd." in file.name for file in sorted(files(place))] == [True, False]


def test_java_compiles_less_for_few_records(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a stream and of its archive; but only if the run ends with what is waiting."""
    name = "spark.driver.extraJavaOptions"
    flag = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m"
    place.pipeline = replace(place.pipeline, conf={name: "-Xmx2g"})
    place.send(*(event(f"07:0{n}:00") for n in range(3)))
    found = []
    for most, available_now in ((3, True), (2, True), (3, False)):
        monkeypatch.setattr("ebbtide.runtime.session._FEW", most)
        options = StreamOptions(available_now=available_now)
        for kind in (PipelineQuery, ArchiveQuery):
            query = kind(place.pipeline, place.settings, options, place.said.append)
            query.check(open_folder(str(tmp_path / "checkpoint")))
            found.append(query.pipeline.conf[name])
    assert found == [f"{flag} -Xmx2g"] * 2 + ["-Xmx2g"] * 4


def test_what_a_checkpoint_has_done_is_not_waiting(place: Place) -> None:
    place.send(event("07:00:00"), event("07:01:00"))
    place.archive()
    place.send(event("07:02:00"))
    source = KafkaStream(place.pipeline, place.settings)
    folder = open_folder(str(place.settings.checkpoint("visits-archive")))
    assert source.count_waiting(folder) == 1
    # a damaged log is for the run to refuse
    place.settings.checkpoint("visits-archive").joinpath("offsets", "0").write_text("v9")
    assert source.count_waiting(folder) == 3
