"""What becomes of measurements: tables, goals and the page with the results."""

from __future__ import annotations

import doctest
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from benchmarks import __main__ as program
from benchmarks import contest, environments, latency, measure
from benchmarks.__main__ import WORKS
from benchmarks.events import OpenedVisits, Visits
from benchmarks.goals import GOALS
from benchmarks.measure import ContenderError, Measurement, Ratio, Result, format_results
from benchmarks.records import Entry, keep_entry, read_entries
from benchmarks.report import write_report
from benchmarks.windowed_count import COLD, WARM
from ebbtide.checkpoint import read_checkpoint
from ebbtide.storage import open_folder
from tests.trees import Shape, make, rewrite_logs

OURS = Result(WARM, "Ebbtide", "event", 1_000_000, (Measurement(4, 3, 10**9, 2.5),) * 2)
SPARK = replace(OURS, contender="plain Spark", runs=(Measurement(8, 10, 10**9),))
WRONG = replace(SPARK, contender="Flink SQL", runs=(), problem="disqualified: 1 of 2 totals " * 5)


def entry(*results: Result, benchmark: str = "windowed-count") -> Entry:
    machine = {"cores": 2, "processor": "x", "memory_bytes": 1, "system": "y", "load_average": 1.0}
    return Entry(benchmark, "2026-01-01T00:00:00", 60, "cmd", False, machine, {"a": "1"}, results)


def test_the_examples() -> None:
    for module in (contest, latency, measure, program):
        assert doctest.testmod(module) == (0, doctest.testmod(module).attempted)
        assert doctest.testmod(module).attempted


def test_a_table_fits_into_80_columns() -> None:
    table = format_results([OURS, SPARK, WRONG])
    assert max(map(len, table.splitlines())) <= 80
    assert "3.00" in table
    assert "disqualified" in table


def test_an_entry_replaces_the_older_one_of_its_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    keep_entry(file, entry(OURS))
    keep_entry(file, entry(SPARK, benchmark="another"))
    keep_entry(file, entry(OURS, SPARK))
    assert read_entries(file) == [entry(SPARK, benchmark="another"), entry(OURS, SPARK)]
    saved = json.loads(file.read_text("utf-8"))["entries"][1]["results"][0]
    assert saved["cpu_us"] == 3.0
    assert saved["spread"] == 0


def test_the_page_has_goals_tables_and_plots(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    keep_entry(file, entry(OURS, SPARK, WRONG))
    found = (Ratio("start", "to a script", 0.7, 0.75), Ratio("latency", "p50", 15, 9, unit="ms"))
    keep_entry(file, replace(entry(benchmark="start"), ratios=found, lines=("a line",)))
    text = write_report(file, tmp_path).read_text("utf-8")
    assert f"| {WARM} | CPU per event, to plain Spark | ≤ 0.5 × | 0.30 × | met |" in text
    assert f"| {WARM} | CPU per event, to Flink SQL | ≤ 0.8 × | – | not measured |" in text
    assert f"| {WARM} | events/s, to plain Spark | ≥ 1.8 × | 2.00 × | met |" in text
    assert "| start | to a script | ≤ 0.7 × | 0.75 × | missed |" in text
    assert "| latency | p50 | ≤ 15 ms | 9.00 ms | met |" in text
    assert "## Start\n\n```\na line\n```" in text
    assert COLD not in text  # not in this file, so nothing is said of it
    assert "| **Ebbtide** | 3.00 | 0% | 250,000 | 1,000 | 2.5 s |" in text
    assert "| Flink SQL | – | – | – | – | – |" in text
    assert "quick" not in text.partition("## ")[2]
    assert (tmp_path / "images" / "performance-windowed-count-warm.svg").stat().st_size > 1_000


def test_make_bench_has_a_section_and_a_goal_for_each_long_work(tmp_path: Path) -> None:
    assert {"history", "latency"} <= set(WORKS)
    file = tmp_path / "results.json"
    row = Result("latency, windowed", "Flink", "event", 20, figures={"p50_ms": 19, "p95_ms": 25})
    goal = Ratio("latency, windowed", "p50, to Spark by default", 0.4, 0.3)
    keep_entry(file, replace(entry(row, benchmark="latency"), ratios=(goal,)))
    goal = Ratio("history", "CPU of a batch with history", 1.03, 1.02)
    keep_entry(file, replace(entry(benchmark="history"), ratios=(goal,), lines=("start 1",)))
    text = write_report(file, tmp_path).read_text("utf-8")
    assert "| latency, windowed | p50, to Spark by default | ≤ 0.4 × | 0.30 × | met |" in text
    assert "| history | CPU of a batch with history | ≤ 1.03 × | 1.02 × | met |" in text
    assert "## History\n\n```\nstart 1\n```" in text
    assert "## Latency, windowed\n\n20 events." in text
    assert "|  | p50_ms | p95_ms |" in text
    assert "| Flink | 19 | 25 |" in text


def test_who_is_slow_is_timed_with_fewer_events() -> None:
    span = latency.Span(most=60, fewest=6, seconds=20)
    assert [span.is_over(n, 21) for n in (5, 6)] == [False, True]
    assert [span.is_over(n, 19) for n in (6, 59, 60)] == [False, False, True]


def test_a_percentile_needs_an_event_above_it() -> None:
    assert list(latency.percentiles([0.1] * 19)) == ["p50_ms"]
    assert list(latency.percentiles([0.1] * 99)) == ["p50_ms", "p95_ms"]
    assert list(latency.percentiles([0.1] * 100)) == ["p50_ms", "p95_ms", "p99_ms"]
    times = {"Flink": [0.02] * 5, "none": []}
    assert latency.format_times([0.1] * 5, times) == "p50   100.0 ms  of 5 · 5.00 × Flink"


class Answers:
    """A consumer that gets these messages, and a producer that sends nowhere."""

    def __init__(self, *messages: tuple[str, bytes]) -> None:
        self._messages = list(messages)

    def poll(self, _seconds: float) -> Any:
        error, value = self._messages.pop(0)
        return SimpleNamespace(error=lambda: error, value=lambda: value)

    def produce(self, *_: Any, **__: Any) -> None: ...

    def flush(self) -> None: ...


def test_only_a_wrong_answer_to_this_very_event_ends_a_run() -> None:
    runs: Any = SimpleNamespace(runs=True)
    early = ("unknown topic", b"Broker: Unknown topic or partition")
    twice = ("", b'{"id": 1, "events": 1}')
    right = ("", b'{"id": 2, "events": 2}')
    answers: Any = Answers(early, twice, right)
    assert latency.time_event(answers, answers, "t", "windowed", 2, runs) < 1
    answers = Answers(("", b'{"id": 2, "events": 3}'))
    with pytest.raises(ContenderError, match="event 2 of windowed gave"):
        latency.time_event(answers, answers, "t", "windowed", 2, runs)


def test_a_contender_of_latency_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[str] = []

    def time_events(contender: latency.Contender, _work: str, *_: Any) -> list[float]:
        tried.append(contender.name)
        if contender is latency.FLINK or tried == [contender.name]:
            raise ContenderError("it ended")
        return [0.01] * 5

    monkeypatch.setattr(latency, "time_events", time_events)
    monkeypatch.setattr(latency, "temporary_broker", lambda: nullcontext(Mock()))
    monkeypatch.setattr(latency, "Settings", Mock())
    found = list(latency.run(quick=True))
    rows = {(each.work, each.contender): each for each in found if isinstance(each, Result)}
    ours, flink = (
        rows["latency, windowed", each.name] for each in (latency.LATENCY, latency.FLINK)
    )
    assert (ours.count, ours.problem) == (5, "it ended")
    assert (flink.count, flink.figures) == (0, {})
    assert found[0] == f"round 1, windowed, {latency.LATENCY.name}: it ended"
    assert ("latency, windowed", "Spark, 2 shuffle partitions") in rows
    assert ("latency, stateless", "Spark, 2 shuffle partitions") not in rows


def test_a_hollow_checkpoint_has_the_same_names_and_batches(tmp_path: Path) -> None:
    for layout in ("hdfs", "rocksdb", "changelog", "v2", "v2-zips"):
        shape = Shape(layout, batches=30, snapshot_every=10)
        whole = make(tmp_path / layout / "whole", shape)
        hollow = make(tmp_path / layout / "hollow", replace(shape, hollow=15))
        assert [each.name for each in hollow.parent.iterdir() if each.is_file()] == []
        trees = [open_folder(str(folder)).scan() for folder in (whole, hollow)]
        names = [{place: listing.names for place, listing in tree.items()} for tree in trees]
        assert names[0] == names[1]
        read = [read_checkpoint(str(folder)) for folder in (whole, hollow)]
        assert read[0].restorable == read[1].restorable
        assert read[0].state_bytes == read[1].state_bytes
        rewrite_logs(hollow, replace(shape, offsets="v2"))
        assert read_checkpoint(str(hollow)).logs.batches[-1].offsets.version == "v2"


def test_no_goal_is_judged_by_what_was_disqualified() -> None:
    wrong = {(each.work, each.contender): each for each in (replace(OURS, problem="x"), SPARK)}
    assert {goal.judge(wrong).verdict for goal in GOALS} == {"not measured"}


def test_the_truth_about_visits() -> None:
    visits = Visits(25_000)
    values = [json.loads(each["value"]) for _, chunk in visits.chunks() for each in chunk]
    starts = [value["event_time"][:15] + "0" for value in values]
    assert {start: starts.count(start) for start in set(starts)} == dict(visits.counts)
    assert len(values) == 25_000


def test_the_truth_about_opened_visits() -> None:
    opened = OpenedVisits(7)
    sent = [json.loads(each["value"])["visit_id"] for _, chunk in opened.chunks() for each in chunk]
    closing = {7, 8}
    assert {visit: sent.count(visit) for visit in {*sent} - closing} == opened.finals
    assert len(sent) == opened.count + len(closing)


def test_flink_runs_on_a_jdk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(ContenderError, match="a JDK is needed"):
        environments.find_jdk()
    javac = tmp_path / "bin" / "javac"
    javac.parent.mkdir()
    javac.touch(mode=0o755)
    assert environments.find_jdk() == javac.parent


def test_a_work_that_fails_does_not_end_the_others(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*, quick: bool) -> Iterator[str]:
        raise ContenderError(f"quick: {quick}")

    def go(*, quick: bool) -> Iterator[str]:
        yield f"ran, quick: {quick}"

    monkeypatch.setattr(program, "ALL", {"one": fail, "other": go})
    monkeypatch.setattr("sys.argv", ["benchmarks", "one", "other", "--quick"])
    with pytest.raises(SystemExit, match="failed: one"):
        program.main()
    shown = capsys.readouterr().out
    assert "one failed: quick: True" in shown
    assert "ran, quick: True" in shown
