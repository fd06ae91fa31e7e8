"""What follows somebody else's query: it never fails the query, and never makes it wait."""

from __future__ import annotations

import json
import os
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

import ebbtide
from ebbtide.attaching import Attachment, attachment, follower, program
from ebbtide.attaching.sessions import ClassicSession
from ebbtide.checkpoint import Owner, read_checkpoint
from ebbtide.errors import UsageError
from ebbtide.history import Entry, kept_entries
from ebbtide.history.store import write_entry
from ebbtide.rewind import RewindRequest, lease, plan_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.storage import open_folder
from tests.trees import in_the_way_of

Say = list[str]


@pytest.fixture
def said() -> Say:
    return []


@pytest.fixture
def attached(spark: SparkSession, said: Say) -> Iterator[Attachment]:
    attached = ebbtide.attach(spark, on_message=said.append)
    yield attached
    attached.close()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """Three files of ten rows; each is a batch."""
    (tmp_path / "in").mkdir()
    for file in range(3):
        add(tmp_path, file)
    return tmp_path


def add(folder: Path, file: int) -> None:
    rows = [{"at": f"2025-09-04T07:{file:02}:{n:02}Z", "n": file * 10 + n} for n in range(10)]
    text = "\n".join(map(json.dumps, rows))
    (folder / f"{file}.json").write_text(text)
    os.utime(folder / f"{file}.json", (1_756_969_200 + file,) * 2)  # Spark reads the oldest first
    (folder / f"{file}.json").rename(folder / "in" / f"{file}.json")


def start(
    spark: SparkSession, folder: Path, name: str = "copies", *, once: bool = True
) -> StreamingQuery:
    rows = spark.readStream.schema("at TIMESTAMP, n INT").option("maxFilesPerTrigger", 1)
    writer = ebbtide.observe(rows.json(str(folder / "in")), event_time="at").writeStream
    writer = writer.queryName(name).option("checkpointLocation", str(folder / name / "checkpoint"))
    writer = (
        writer.trigger(availableNow=True) if once else writer.trigger(processingTime="0 seconds")
    )
    return writer.format("parquet").option("path", str(folder / name / "out")).start()


def finish(query: StreamingQuery, attached: Attachment) -> None:
    query.awaitTermination()
    wait_until(lambda: str(query.runId) not in attached.followed)


def wait_until(true: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.02)


def entries_of(folder: Path, name: str = "copies") -> dict[int, Entry]:
    return dict(kept_entries(read_checkpoint(str(folder / name / "checkpoint"))))


def test_every_batch_is_recorded_and_the_sink_is_known(
    spark: SparkSession, attached: Attachment, files: Path, said: Say
) -> None:
    query = start(spark, files, once=False)
    checkpoint = files / "copies" / "checkpoint"
    wait_until(lambda: (checkpoint / "commits" / "2").exists())
    folder = open_folder(str(checkpoint))
    wait_until(lambda: lease.read_lease(folder))
    held = lease.read_lease(folder)
    assert held is not None
    assert len(held.alive()) == 2, "Python and its JVM"
    plan = plan_rewind(RewindRequest(str(checkpoint), ToBatch(1)))
    assert "the query is running" in " ".join(check.detail for check in plan.refusals)
    query.stop()
    finish(query, attached)
    assert lease.read_lease(folder).released  # type: ignore[union-attr]
    entries = entries_of(files)
    assert [entry.rows for entry in entries.values()] == [10, 10, 10]
    times = ("2025-09-04T07:01:00.000000Z", "2025-09-04T07:01:09.000000Z")
    assert entries[1].event_times == times
    owner = Owner.read(folder)
    assert owner.pipeline == "copies"
    out = str(files / "copies" / "out")
    assert owner.sink == {"kind": "files", "name": out, "path": out}
    plan = plan_rewind(RewindRequest(str(checkpoint), ToBatch(1)))
    assert not plan.refusals
    assert said == []


def test_a_store_that_fails_is_reported_once_and_written_later(
    spark: SparkSession, attached: Attachment, files: Path, said: Say
) -> None:
    query = start(spark, files, once=False)
    checkpoint = files / "copies" / "checkpoint"
    wait_until(lambda: len(entries_of(files)) == 3 if (checkpoint / "metadata").exists() else False)
    with in_the_way_of(checkpoint / ".ebbtide"):
        add(files, 3)
        wait_until(lambda: any("The history cannot be written" in line for line in said))
        assert (checkpoint / "commits" / "3").exists(), "the query goes on"
        add(files, 4)
        wait_until((checkpoint / "commits" / "4").exists)
    assert sum("The history cannot be written" in line for line in said) == 1
    query.stop()
    finish(query, attached)
    assert list(entries_of(files)) == [0, 1, 2, 3, 4]


def test_a_query_that_is_started_again_at_once(
    spark: SparkSession, attached: Attachment, files: Path, said: Say
) -> None:
    """Its last run is written and given back first."""
    first = start(spark, files)
    first.awaitTermination()
    add(files, 3)
    second = start(spark, files)
    finish(second, attached)
    finish(first, attached)
    assert list(entries_of(files)) == [0, 1, 2, 3]
    assert said == []


def test_a_slow_store_delays_nothing(
    spark: SparkSession,
    attached: Attachment,
    files: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The batches are done long before the first of them is written."""
    gate = [False]

    def write_slowly(folder: object, entry: Entry) -> None:
        wait_until(lambda: gate[0])
        write_entry(folder, entry)  # type: ignore[arg-type]

    monkeypatch.setattr("ebbtide.history.recorder.write_entry", write_slowly)
    query = start(spark, files)
    query.awaitTermination()
    assert entries_of(files) == {}
    gate[0] = True
    finish(query, attached)
    assert list(entries_of(files)) == [0, 1, 2]


def test_errors_of_our_own_do_not_reach_the_query(
    spark: SparkSession,
    attached: Attachment,
    files: Path,
    said: Say,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(Attachment, "observe", fail)
    monkeypatch.setattr(follower.Follower, "_open", fail)
    query = start(spark, files)
    finish(query, attached)
    assert query.exception() is None
    assert (files / "copies" / "checkpoint" / "commits" / "2").exists()
    assert any("a bug of ours" in line for line in said)


def test_one_query_of_several_is_followed(spark: SparkSession, files: Path, said: Say) -> None:
    queries = [start(spark, files, name, once=False) for name in ("one", "other")]
    attached = ebbtide.attach(queries[0], metrics_port=0, on_message=said.append)
    try:
        assert ebbtide.attach(queries[0]) is attached
        add(files, 3)
        wait_until(lambda: 3 in entries_of(files, "one"))
        wait_until((files / "other" / "checkpoint" / "commits" / "3").exists)
        assert not (files / "other" / "checkpoint" / ".ebbtide").exists()
        assert ebbtide.attach(spark) is attached
        add(files, 4)
        wait_until(lambda: 4 in entries_of(files, "other"))
        server = attached._server
        assert server is not None
        with urllib.request.urlopen(server.url, timeout=10) as answer:
            text = answer.read().decode()
        assert text.count("# HELP ebbtide_batches_total") == 1
        for name in ("one", "other"):
            assert f'ebbtide_running{{pipeline="{name}"}} 1.0' in text
    finally:
        attached.close()
        for query in queries:
            query.stop()
    assert (files / "one" / "checkpoint" / "commits" / "4").exists()


def test_what_cannot_be_followed(
    spark: SparkSession, attached: Attachment, said: Say, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = list[object]()
    monkeypatch.setattr(attachment, "Follower", lambda *query: made.append(query))
    rate = spark.readStream.format("rate").load()
    query = rate.writeStream.format("noop").trigger(availableNow=True).start()
    finish(query, attached)
    assert made == [], "Spark removes its checkpoint"
    with pytest.raises(UsageError, match="value is no timestamp column of these rows"):
        ebbtide.observe(rate, event_time="value")
    with pytest.raises(UsageError, match="not DataFrame"):
        ebbtide.attach(rate)
    assert said == []


def test_an_end_that_no_event_tells(
    spark: SparkSession, attached: Attachment, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark drops events, and sends none of those after spark.stop()."""
    monkeypatch.setattr(attachment, "_WATCH_SECONDS", 0.1)
    monkeypatch.setattr(Attachment, "end", lambda *_: None)
    query = start(spark, files)
    finish(query, attached)
    held = lease.read_lease(open_folder(str(files / "copies" / "checkpoint")))
    assert held is not None
    assert held.released


def test_event_times_of_one_watermark_only(
    spark: SparkSession, attached: Attachment, files: Path
) -> None:
    """Of several, Spark notes one: what it notes may leave records out."""
    rows = spark.readStream.schema("at TIMESTAMP, n INT").json(str(files / "in"))
    late = rows.where("n >= 20").withWatermark("at", "1 minute")
    early = rows.where("n < 20").withWatermark("at", "1 minute")
    for name, both in (("one", late), ("two", early.union(late))):
        writer = both.writeStream.format("noop").trigger(availableNow=True)
        location = str(files / name / "checkpoint")
        finish(writer.option("checkpointLocation", location).start(), attached)
    (one,), (two,) = (entries_of(files, name).values() for name in ("one", "two"))
    assert one.event_times == ("2025-09-04T07:02:00.000000Z", "2025-09-04T07:02:09.000999Z")
    assert two.event_times is None


def test_a_message_that_cannot_be_said(spark: SparkSession, files: Path) -> None:
    def fail(_line: str) -> None:
        raise BrokenPipeError

    attached = ebbtide.attach(spark, on_message=fail)
    checkpoint = files / "copies" / "checkpoint"
    try:
        query = start(spark, files, once=False)
        wait_until((checkpoint / ".ebbtide" / "leases" / "1.json").exists)
        with in_the_way_of(checkpoint / ".ebbtide"):
            add(files, 3)
            wait_until((checkpoint / "commits" / "3").exists)
        query.stop()
        finish(query, attached)
    finally:
        attached.close()
    assert list(entries_of(files)) == [0, 1, 2, 3]


def test_a_program_runs_if_it_cannot_be_followed(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise UsageError("Spark Connect does not tell.", "")

    for name in ("getOrCreate", "create"):
        monkeypatch.setattr(SparkSession.Builder, name, getattr(SparkSession.Builder, name))
    monkeypatch.setattr(program, "attach", fail)
    program.attach_to_sessions()
    assert SparkSession.builder.getOrCreate().sparkContext is spark.sparkContext
    assert "The queries of this program are not followed: Spark Connect" in caplog.text


def test_a_path_is_of_sparks_own_filesystem(spark: SparkSession) -> None:
    """The sink of a query tells its path as the program wrote it."""
    settings = spark.sparkContext._jsc.hadoopConfiguration()
    session = ClassicSession(spark)
    assert session._qualify("/out") == "file:/out"
    before = settings.get("fs.defaultFS")
    settings.set("fs.defaultFS", "hdfs://127.0.0.1:8020")
    try:
        assert session._qualify("/out") == "hdfs://127.0.0.1:8020/out"
        assert session._qualify("file:/out") == "file:/out"
    finally:
        settings.set("fs.defaultFS", before)


def test_batches_before_attach_are_recorded_once(
    spark: SparkSession, files: Path, said: Say
) -> None:
    query = start(spark, files, once=False)
    wait_until((files / "copies" / "checkpoint" / "commits" / "2").exists)
    for _ in range(2):
        attached = ebbtide.attach(query, on_message=said.append)
        wait_until(lambda: len(entries_of(files)) == 3)
        attached.close()
    query.stop()
    history = files / "copies" / "checkpoint" / ".ebbtide" / "history"
    assert len(list(history.glob("*.jsonl"))) == 3
    assert said == []


def test_a_port_that_is_taken_is_only_reported(
    spark: SparkSession, attached: Attachment, said: Say
) -> None:
    attached.serve(0, None)
    assert attached._server is not None
    port = int(attached._server.url.rpartition(":")[2].split("/")[0])
    other = Attachment(ClassicSession(spark), said.append)
    other.serve(port, None)
    other.close()
    assert any(f"Metrics cannot be served at 127.0.0.1:{port}" in line for line in said)
