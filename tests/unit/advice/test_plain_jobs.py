"""`ebbtide plan` for a job that is not a pipeline: all that is known of it is its checkpoint."""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from shlex import quote

import pytest

from ebbtide import connectors
from ebbtide.advice import Advice, advise_on_checkpoint
from ebbtide.checkpoint import layout
from ebbtide.checks import CheckKind
from ebbtide.config import Settings
from ebbtide.connectors import SinkPlace, base, kafka
from ebbtide.history.store import write_entry
from ebbtide.notes import write_note
from ebbtide.registry import read_recent
from ebbtide.rewind.holders import RUN
from ebbtide.rewind.lease import hold_lease
from ebbtide.storage import open_folder, open_writable
from tests.conftest import Cli
from tests.outputs import write_batches, write_files
from tests.trees import Shape, make
from tests.unit.advice.places import minute, planned
from tests.unit.connectors.test_sources import inputs, of_files  # noqa: F401 - fixtures
from tests.unit.history.test_history import entry

STATEFUL = Shape(layout="rocksdb", batches=10, operator_metadata="v1")
SINCE = "1970-01-01T00:00:01.005"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


def attach(checkpoint: Path, source: str, kind: str, path: Path | str = "") -> Path:
    """The note that `ebbtide.attach` leaves in a checkpoint."""
    folder, name = open_folder(str(checkpoint)), str(path) or "its foreachBatch function"
    sink = asdict(SinkPlace(kind, name, str(path)))
    note = {"pipeline": "pages", "source": {"kind": source}, "sink": sink}
    write_note(folder, layout.OWNER, {**note, "location": folder.address})
    return checkpoint


@pytest.fixture
def to_delta(tmp_path: Path) -> Path:
    """From Kafka into a Delta table, with state; its ten batches are committed."""
    write_batches(tmp_path / "counts", range(10))
    return attach(make(tmp_path / "my job", STATEFUL), "kafka", "delta", tmp_path / "counts")


def test_kafka_to_delta(to_delta: Path, settings: Settings) -> None:
    flags = {"--kafka-config": "client.properties", "--timezone": "UTC"}
    advice = advise_on_checkpoint(str(to_delta), settings, planned(5), flags=flags)
    assert (advice.name, advice.pipeline) == ("pages", None)
    assert (advice.first_batch, advice.recommended) == (5, "rewind")
    rewind = advice.rewind
    assert (rewind.batches, rewind.records) == (5, 15)
    assert rewind.retention == "nobody asked Kafka whether it still holds the records"
    assert rewind.bytes
    assert rewind.state == "removed from batch 5 on and computed again: repaired"
    assert "counts goes back from version 9 to version 4" in rewind.sink
    kafka = "--kafka-config client.properties"
    assert rewind.command == (
        f"ebbtide rewind {quote(str(to_delta))} --to-batch 5 --sink restore {kafka} "
        "--assume-stopped"
    )
    trial, _, show, restart = rewind.steps
    assert trial.command == (
        f"ebbtide replay path.py:build --checkpoint {quote(str(to_delta))} --to-scratch "
        f"--from-batch 5 {kafka} --timezone UTC"
    )
    assert show.command == rewind.command
    assert restart.command == ""
    assert restart.what.startswith("Start your job again as you always do, with the corrected")
    assert advice.caveats == (
        "nobody asked Kafka whether it still holds the records. Add --bootstrap-servers.",
    )


def test_a_reprocess_takes_a_pipeline(to_delta: Path, settings: Settings) -> None:
    advice = advise_on_checkpoint(str(to_delta), settings, planned(5))
    assert not advice.reprocess.possible
    assert "takes a pipeline and its archive" in str(advice.reprocess.problem)
    assert advice.reprocess.remedy.endswith(
        f"ebbtide plan PIPELINE --since TIME --checkpoint {quote(str(to_delta))}"
    )
    assert "A reprocess is not possible." in advice.reason


def test_files_to_files(tmp_path: Path, of_files: Path, settings: Settings) -> None:  # noqa: F811
    write_files(tmp_path / "out", range(4))
    attach(of_files, "files", "files", tmp_path / "out")
    rewind = advise_on_checkpoint(str(of_files), settings, planned(1)).rewind
    assert rewind.possible
    assert (rewind.batches, rewind.records) == (3, None)  # no history, and files are no records
    assert rewind.retention.startswith("all 18 files are there")
    assert "would skip batches 1 to 3, so its log goes back, too" in rewind.sink
    for batch in range(4):
        sources = (json.dumps({"logOffset": 3 * batch + 2}),)
        write_entry(open_folder(str(of_files)), entry(batch, sources=sources, rows=100 + batch))
    assert advise_on_checkpoint(str(of_files), settings, planned(1)).rewind.records == 306


def test_several_sinks_go_back_together(tmp_path: Path, settings: Settings, inside: Cli) -> None:
    checkpoint, tables = make(tmp_path / "c", STATEFUL), (tmp_path / "a", tmp_path / "b")
    attach(checkpoint, "kafka", "foreach-batch")
    for table in tables:
        write_batches(table, range(10))
    flags = [word for table in tables for word in ("--sink-table", str(table))]
    assert inside("sinks", checkpoint, *flags).returncode == 0
    rewind = advise_on_checkpoint(str(checkpoint), settings, planned(5)).rewind
    assert rewind.possible
    for table in tables:
        assert f"{table} goes back from version 9 to version 4" in rewind.sink
    assert f"ebbtide rewind {checkpoint} --to-batch 5 --sink restore" in rewind.command
    assert "--sink-table" not in rewind.command  # noted once and for all


def test_a_foreach_batch_function_may_write_a_table(tmp_path: Path, settings: Settings) -> None:
    checkpoint = attach(make(tmp_path / "c", STATEFUL), "kafka", "foreach-batch")
    rewind = advise_on_checkpoint(str(checkpoint), settings, planned(5)).rewind
    assert rewind.possible
    assert rewind.sink == (
        "its foreachBatch function gets the output of batches 5 to 9 again. If it writes a Delta "
        "table, name that with --sink-table."
    )


def test_an_unknown_sink_is_refused_as_by_rewind(
    tmp_path: Path, settings: Settings, inside: Cli
) -> None:
    checkpoint = make(tmp_path / "c", STATEFUL)
    advice = advise_on_checkpoint(str(checkpoint), settings, planned(5))
    assert not advice.possible
    assert (advice.rewind.batches, advice.rewind.records) == (5, 15)
    answer = inside("rewind", checkpoint, "--to-batch", "5", "--assume-stopped")
    assert str(advice.rewind.problem)[1:] in answer.stderr
    _, _, next_step = advice.rewind.remedy.partition(": ")
    assert next_step in answer.stderr
    assert next_step.endswith(f"ebbtide sinks {checkpoint} --search DIR")


def test_a_job_that_runs_is_stopped_first(to_delta: Path, settings: Settings) -> None:
    with hold_lease(open_writable(str(to_delta)), RUN):
        advice = advise_on_checkpoint(str(to_delta), settings, planned(5))
    assert advice.rewind.possible
    assert f"the query is running (process {os.getpid()})" in advice.rewind.stream
    _, stop, *_ = advice.rewind.steps
    what = f"Stop your job (process {os.getpid()}), and see that nothing restarts it."
    assert (stop.what, stop.command) == (what, "")
    assert "--assume-stopped" not in advice.rewind.command


def test_a_broker_that_is_named_is_asked(
    to_delta: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "find_problem", partial(kafka.find_problem, timeout_seconds=0.2))
    with socket.socket() as taken:  # a port that nobody listens to
        taken.bind(("127.0.0.1", 0))
        named = replace(settings, bootstrap_servers=f"127.0.0.1:{taken.getsockname()[1]}")
        advice = advise_on_checkpoint(str(to_delta), named, planned(5))
    assert str(advice.rewind.problem).startswith("No Kafka broker answers at 127.0.0.1:")
    assert advice.rewind.records == 15


def test_a_topic_keeps_its_name(
    to_delta: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = CheckKind.KAFKA.refuse("visits partition 0: 2 records have aged out of Kafka")
    verdict = base.SourceVerdict((gone,))
    monkeypatch.setattr(connectors, "check_sources", lambda *_, **__: verdict)
    rewind = advise_on_checkpoint(str(to_delta), settings, planned(5)).rewind
    assert rewind.problem == "visits partition 0: 2 records have aged out of Kafka."
    assert rewind.retention == rewind.problem.rstrip(".")


def by_event_time(checkpoint: Path, settings: Settings, minutes: float) -> Advice:
    at = minute(minutes)
    return advise_on_checkpoint(str(checkpoint), settings, at, event_time=True)


def test_event_times_of_the_history(to_delta: Path, settings: Settings) -> None:
    for batch in range(10):
        times = (f"1970-01-01T00:{batch:02}:00.000Z", f"1970-01-01T00:{batch:02}:59.000Z")
        write_entry(open_folder(str(to_delta)), entry(batch, event_times=times))
    advice = by_event_time(to_delta, settings, 7)
    assert (advice.clock, advice.first_batch) == ("event time", 7)
    assert "from the history" in advice.first_batch_reason
    late = by_event_time(to_delta, settings, 70)
    assert "No record since batch 0 has an event time from" in str(late.rewind.problem)
    assert "Or leave out --event-time" in late.rewind.remedy


def test_event_times_that_nobody_recorded(to_delta: Path, settings: Settings) -> None:
    advice = by_event_time(to_delta, settings, 7)
    assert "The history does not have the event times" in str(advice.rewind.problem)
    assert advice.rewind.remedy.startswith("Add --event-time-field NAME. Or leave out --event-time")
    field = {"event_time": True, "event_time_field": "at"}
    named = advise_on_checkpoint(str(to_delta), settings, minute(7), **field)  # type: ignore[arg-type]
    assert "there is no broker" in str(named.rewind.problem)
    assert named.rewind.remedy.startswith("Add --bootstrap-servers.")


def test_files_have_no_event_times(of_files: Path, settings: Settings) -> None:  # noqa: F811
    advice = by_event_time(of_files, settings, 7)
    assert "does not read Kafka, so the event times of" in str(advice.rewind.problem)
    assert "Or leave out --event-time" in advice.rewind.remedy


def test_batches_that_are_gone(tmp_path: Path, settings: Settings) -> None:
    checkpoint = make(tmp_path / "c", Shape(batches=4, first=6))
    advice = advise_on_checkpoint(str(checkpoint), settings, planned(3))
    assert "are gone: the oldest left, 6" in str(advice.rewind.problem)
    assert advice.rewind.remedy == "The oldest batch that can run again is 7."


def test_what_is_shown(to_delta: Path, inside: Cli) -> None:
    answer = inside("plan", to_delta, "--since", SINCE, COLUMNS="80")
    assert answer.returncode == 0, answer.stderr
    assert "pages: wrong since 1970-01-01T00:00:01" in answer.stderr
    assert "5 batches, 15 records" in answer.stdout
    assert "reprocess   " not in answer.stdout  # no column of which nothing is known
    assert "?" not in answer.stdout
    assert "Recommended: rewind." in answer.stdout
    # what is to be copied stands in a line of its own
    place = quote(str(to_delta))
    assert f"\n     ebbtide rewind {place} --to-batch 5 --sink restore" in answer.stdout
    assert f"\n     ebbtide replay path.py:build --checkpoint {place}" in answer.stdout
    prose = [line for line in answer.stdout.splitlines() if "ebbtide " not in line]
    assert max(map(len, prose)) <= 80
    assert str(to_delta) in read_recent()


def test_a_refusal_says_what_to_type(tmp_path: Path, inside: Cli) -> None:
    checkpoint = make(tmp_path / "c", Shape(batches=10))
    answer = inside("plan", checkpoint, "--since", SINCE, COLUMNS="80")
    assert answer.returncode == 1
    *_, above, line = answer.stdout.partition("\n\nFor a reprocess: ")[0].splitlines()
    assert above.endswith("To look for it:")
    assert line == f"     ebbtide sinks {checkpoint} --search DIR"


def test_json_for_scripts(to_delta: Path, inside: Cli) -> None:
    answer = inside("plan", to_delta, "--since", SINCE, "-o", "json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    assert (found["name"], found["pipeline"], found["first_batch"]) == ("pages", None, 5)
    assert (found["rewind"]["possible"], found["reprocess"]["possible"]) == (True, False)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("visits-conter",), 2, "There is no job 'visits-conter', and no folder of that name"),
        (("visits-conter",), 2, "Did you mean visits-counter? Ready jobs: visits-windows-counter"),
        (("no/such/place",), 2, "Name a pipeline of your own as module:attr or path.py:attr, a"),
        (("job.py",), 2, "There is no job 'job.py'"),
        (("job.py:build",), 2, "There is no file job.py"),
        (("nothing:here",), 2, "There is no module 'nothing'"),
        (("file:///no/such/place",), 2, "There is no job 'file:///no/such/place', and no folder"),
        (("memory://no/such/place",), 1, "is not a checkpoint: it has no file 'metadata'"),
        (("./empty",), 1, "is not a checkpoint: it has no file 'metadata'"),
        (("./empty", "--checkpoint", "c"), 2, "--checkpoint cannot be used here: ./empty is taken"),
        (("visits-counter", "--event-time-field", "at"), 2, "a pipeline names the field"),
    ],
)
def test_what_is_neither_a_pipeline_nor_a_checkpoint(
    words: tuple[str, ...],
    code: int,
    said: str,
    tmp_path: Path,
    inside: Cli,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    answer = inside("plan", *words, "--since", SINCE)
    assert (answer.returncode, answer.stdout) == (code, "")
    assert said in answer.stderr
    assert len(answer.stderr.splitlines()) == 1


def test_a_folder_of_a_jobs_name_is_meant_with_its_path(
    tmp_path: Path, inside: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make(tmp_path / "visits-counter", Shape(batches=10))
    as_name = inside("plan", "visits-counter", "--since", SINCE, "-o", "json")
    as_path = inside("plan", "./visits-counter", "--since", SINCE, "-o", "json")
    assert json.loads(as_name.stdout)["pipeline"] == "visits-counter"
    assert json.loads(as_path.stdout)["pipeline"] is None
