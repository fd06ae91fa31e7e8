"""What follows one run of a query, without Spark: queues, stores and sinks that fail."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from ebbtide.attaching import follower
from ebbtide.attaching.follower import Follower, note_owner
from ebbtide.checkpoint import Owner, Timeline, layout
from ebbtide.errors import EbbtideError
from ebbtide.history import read_history
from ebbtide.history.recorder import Recorder
from ebbtide.history.store import write_entry
from ebbtide.notes import write_note
from ebbtide.rewind import lease
from ebbtide.runtime.metrics_endpoint import Metrics
from ebbtide.storage import open_folder
from tests.unit.attaching.sessions import FakeQuery, progress

QUERY_ID = "7b3c"


@pytest.fixture
def query(tmp_path: Path) -> FakeQuery:
    (tmp_path / "metadata").write_text(json.dumps({"id": QUERY_ID}))
    return FakeQuery(str(tmp_path))


@contextmanager
def following(query: FakeQuery, said: list[str] | None = None, **more: Any) -> Iterator[Follower]:
    """A follower that is ended, and must end soon."""
    ended = threading.Event()
    say = (said if said is not None else []).append
    one = Follower(query.running(**more), Metrics("copies"), say, ended.set)
    one.start()
    try:
        yield one
    finally:
        one.end()
        assert ended.wait(8), "it did not end"


def batches_of(query: FakeQuery) -> list[int]:
    return [entry.batch for entry in read_history(open_folder(query.location)).entries]


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 8
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Until it is set, the store does not answer."""
    gate = threading.Event()

    def write_slowly(*arguments: Any) -> None:
        gate.wait(8)
        write_entry(*arguments)

    monkeypatch.setattr("ebbtide.history.recorder.write_entry", write_slowly)
    return gate


def test_a_full_queue_at_the_end(
    query: FakeQuery, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that fitted is written, and the checkpoint is given back."""
    monkeypatch.setattr(follower, "_WAITING_BYTES", 10 * len(progress(0)))
    said = list[str]()
    with following(query, said) as one:
        for batch in range(50):
            one.observe(progress(batch))
        one.end()
        assert one._texts.full()
        gate.set()
    assert 5 < len(batches_of(query)) < 20
    assert "the store does not answer, and too much waits" in said[0]
    held = lease.read_lease(open_folder(query.location))
    assert held is None or held.released


def test_what_waits_is_bounded_by_its_size(
    query: FakeQuery, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follower, "_WAITING_BYTES", 1_000_000)
    with following(query) as one:
        for batch in range(50):
            one.observe(progress(batch, padding="x" * 100_000))
        assert sum(map(len, filter(None, one._texts.queue))) <= 1_100_000
        gate.set()


def test_what_a_failing_store_could_not_take_is_bounded_by_its_size(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The oldest is left out."""

    def fail(*_: object) -> None:
        raise OSError("No space left")

    monkeypatch.setattr("ebbtide.history.recorder._PENDING_BYTES", 100_000)
    monkeypatch.setattr("ebbtide.history.recorder.write_entry", fail)
    recorder = Recorder(open_folder(query.location), lambda: "")
    long = {str(partition): 2**40 for partition in range(500)}
    for batch in range(30):
        told = json.loads(progress(batch))
        told["sources"] = [{"startOffset": None, "endOffset": {"t": long}}]
        with pytest.raises(OSError, match="No space"):
            recorder.record(told)
    assert sum(len(str(entry.sources)) for entry in recorder._pending) < 110_000
    monkeypatch.setattr("ebbtide.history.recorder.write_entry", write_entry)
    recorder.catch_up()
    assert batches_of(query)[-1] == 29
    assert recorder._pending_bytes == 0


def test_batches_of_which_no_event_came(query: FakeQuery) -> None:
    """Before we came, in between, and the last: Spark keeps the recent ones."""
    query.recent = [progress(batch) for batch in range(3)]
    with following(query) as one:
        wait_until(lambda: batches_of(query) == [0, 1, 2])
        one.observe(progress(2))
        query.recent = [progress(batch) for batch in range(6)]
        one.observe(progress(5))
        one.drain(time.monotonic() + 8)
        assert batches_of(query) == list(range(6))
        query.recent = [progress(batch) for batch in range(7)]
    assert batches_of(query) == list(range(7))


def test_a_store_that_cannot_be_read_at_first(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The batch is recorded as soon as it can be; Spark still knows it."""
    read, outage = Timeline.read, [OSError("no route to host")]

    def read_later(folder: Any) -> Timeline:
        if outage:
            raise outage.pop()
        return read(folder)

    with following(query) as one:
        wait_until(lambda: lease.read_lease(open_folder(query.location)))
        one.drain(time.monotonic() + 8)
        monkeypatch.setattr("ebbtide.history.recorder.Timeline.read", read_later)
        query.recent = [progress(0)]
        one.observe(progress(0))
        one.drain(time.monotonic() + 8)
        query.recent = [progress(0), progress(1)]
        one.observe(progress(1))
    assert batches_of(query) == [0, 1]


def test_a_disk_that_stays_full_to_the_end(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told that the history is written again."""

    def fail(*_: object) -> None:
        raise OSError("No space left")

    monkeypatch.setattr("ebbtide.history.recorder.write_entry", fail)
    said, query.recent = list[str](), [progress(0)]
    with following(query, said) as one:
        one.observe(progress(0))
    (line,) = said
    assert line.startswith("Warning: The history cannot be written: No space left")


def test_a_sink_that_could_not_be_noted_is_noted_with_the_next_batch(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    outage = [OSError("No space left")]

    def note_later(*arguments: Any) -> None:
        if outage:
            raise outage.pop()
        note_owner(*arguments)

    monkeypatch.setattr(follower, "note_owner", note_later)
    with following(query) as one:
        one.observe(progress(0))
        one.observe(progress(1))
    assert (Owner.read(open_folder(query.location)).sink or {})["path"] == "/out"


def test_a_spark_that_does_not_answer_any_more(query: FakeQuery) -> None:
    def fail(_batch: int) -> list[str]:
        raise ConnectionError("the JVM is gone")

    said = list[str]()
    with following(query, said) as one:
        object.__setattr__(one.query, "recent_progress", fail)
        one.observe(progress(0))
    assert batches_of(query) == [0]
    assert said == []


def test_the_checkpoint_of_another_query_is_left_alone(query: FakeQuery) -> None:
    """With Spark Connect, it is the user who names it."""
    said = list[str]()
    with following(query, said, id="another") as one:
        one.observe(progress(0))
        time.sleep(0.2)
    assert not (Path(query.location) / ".ebbtide").exists()
    assert f"is the checkpoint of query {QUERY_ID}, not of another" in said[0]


def test_a_folder_that_is_no_checkpoint_is_left_alone(query: FakeQuery) -> None:
    (Path(query.location) / "metadata").unlink()
    said = list[str]()
    with following(query, said, id=QUERY_ID):
        time.sleep(0.2)
    assert list(Path(query.location).iterdir()) == []
    assert "is not a checkpoint" in said[0]


def test_a_path_is_of_the_filesystem_that_spark_uses(query: FakeQuery) -> None:
    """`/out` may be of HDFS, whose address only Spark knows."""
    running = query.running(qualify=lambda path: f"memory:/{path}")
    folder = open_folder(query.location)
    note_owner(folder, running, json.loads(progress(0, sink="FileSink[/out]")))
    sink = Owner.read(folder).sink
    assert sink == {"kind": "files", "name": "memory://out", "path": "memory://out"}


def test_a_sink_that_cannot_be_opened_does_not_stop_the_history(query: FakeQuery) -> None:
    assert "acme" not in fsspec.available_protocols()
    said = list[str]()
    with following(query, said) as one:
        for batch in range(3):
            one.observe(progress(batch, sink="FileSink[acme://out]"))
    assert batches_of(query) == [0, 1, 2]
    (line,) = said
    assert line.startswith("Warning: The sink cannot be written: acme://out")
    assert Owner.read(open_folder(query.location)).sink is None


def test_a_topic_that_was_noted_is_kept(query: FakeQuery) -> None:
    """Spark calls the sink by its class, and does not tell the topic."""
    folder = open_folder(query.location)
    topic = {"kind": "kafka", "name": "visits", "path": ""}
    known = Owner("copies", sink=topic, location=folder.address)
    write_note(folder, layout.OWNER, known.to_dict())
    kafka = "org.apache.spark.sql.kafka010.KafkaSourceProvider$KafkaTable@71fa"
    note_owner(folder, query.running(), json.loads(progress(0, sink=kafka)))
    assert Owner.read(folder).sink == topic
    note_owner(folder, query.running(), json.loads(progress(1, sink="FileSink[/out]")))
    assert (Owner.read(folder).sink or {})["path"] == "/out"


def test_a_query_that_is_started_again_with_another_sink(query: FakeQuery) -> None:
    for run in range(2):
        with following(query) as one:
            one.observe(progress(run, sink=f"FileSink[/out-{run}]"))
    assert (Owner.read(open_folder(query.location)).sink or {})["path"] == "/out-1"
    assert batches_of(query) == [0, 1]


def test_what_an_earlier_run_noted_is_not_kept(query: FakeQuery) -> None:
    """Of this run it is not known where it writes."""
    folder = open_folder(query.location)
    told = json.loads(progress(0, sink="FileSink[/out]"))
    note_owner(folder, query.running(), told)
    assert (Owner.read(folder).sink or {})["path"] == "/out"
    told = json.loads(progress(1, sink="FileSink[acme://out]"))
    with pytest.raises(EbbtideError, match="acme://out"):
        note_owner(folder, query.running(), told)
    assert Owner.read(folder).sink is None


def test_each_batch_has_the_output_mode_of_its_run(query: FakeQuery) -> None:
    for batch, mode in enumerate(("append", None)):
        with following(query, output_mode=mode) as one:
            one.observe(progress(batch))
    history = read_history(open_folder(query.location))
    assert [entry.output_mode for entry in history.entries] == ["append", None]


def test_a_python_that_starts_no_more_threads(
    query: FakeQuery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As 3.12 does while it ends: the checkpoint is given back nevertheless."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "ebbtide-release":
            raise RuntimeError("can't create new thread at interpreter shutdown")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    said = list[str]()
    with following(query, said):
        wait_until(lambda: lease.read_lease(open_folder(query.location)))
    assert lease.read_lease(open_folder(query.location)).released  # type: ignore[union-attr]
    assert said == []
