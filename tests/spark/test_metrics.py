"""A running stream asked as Prometheus does: what it says is what the history keeps."""

from __future__ import annotations

import socket
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from ebbtide import Files, Pipeline
from ebbtide.config import Settings
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.history import read_history
from ebbtide.history.metrics import count
from ebbtide.runtime.stream import BatchReport, StreamOptions, run_stream
from ebbtide.storage import open_folder
from tests.spark.test_stream import SCHEMA, write

Labelled = tuple[str, frozenset[tuple[str, str]]]


pytestmark = pytest.mark.usefixtures("one_session")


def counter(folder: Path, out: Path) -> Pipeline:
    def by_window(rows: DataFrame) -> DataFrame:
        return rows.groupBy(F.window("event_time", "10 minutes")).count()

    return Pipeline(
        "visits-counted",
        source=Files(str(folder), schema=SCHEMA, options={"maxFilesPerTrigger": "1"}),
        event_time="event_time",
        watermark="10 minutes",
        transform=by_window,
        sink=Files(str(out), "json"),
    )


def scrape(address: str) -> dict[Labelled, float]:
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_what_it_says_is_what_the_history_keeps(settings: Settings, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for n, minute in enumerate(("00", "30", "05", "59")):  # the third is late
        write(tmp_path / "in", f"{n}.json", [(n, f"07:{minute}"), (n, f"08:{minute}")])
    checkpoint, said = tmp_path / "c", list[str]()
    found: list[tuple[dict[Labelled, float], int]] = []

    def ask(_report: BatchReport) -> None:
        """Before the batch that just ended is counted and kept."""
        kept = len(read_history(open_folder(str(checkpoint))).entries)
        found.append((scrape(said[0].rpartition(" ")[2]), kept))

    options = StreamOptions(str(checkpoint), available_now=True, metrics_port=0)
    result = run_stream(
        counter(tmp_path / "in", tmp_path / "out"), settings, options, on_batch=ask, say=said.append
    )
    assert result.batches >= 4
    entries = read_history(open_folder(str(checkpoint))).entries
    assert [kept for _, kept in found] == list(range(result.batches))
    for scraped, kept in found:
        should = {
            (sample.name, frozenset({**sample.labels, "pipeline": "visits-counted"}.items())): (
                sample.value
            )
            for sample in count(entries[:kept]).samples()
        }
        about = {key: value for key, value in scraped.items() if key not in should}
        assert {name: value for (name, _), value in about.items()} == {
            "ebbtide_info": 1,
            "ebbtide_running": 1,
        }
        assert {key: scraped.get(key) for key in should} == pytest.approx(should)
    names = {name for name, _ in found[-1][0]}
    assert {"ebbtide_state_rows", "ebbtide_watermark_delay_seconds"} <= names
    assert "ebbtide_lag_records" not in names, "files have none"
    with pytest.raises(OSError, match="refused"):
        scrape(said[0].rpartition(" ")[2])


def test_a_port_that_is_taken_is_refused_before_spark_starts(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = "ebbtide.runtime.session.build_session"
    monkeypatch.setattr(started, lambda *_a, **_k: pytest.fail("Spark started"))
    (tmp_path / "in").mkdir()
    pipeline = counter(tmp_path / "in", tmp_path / "out")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        options = StreamOptions(str(tmp_path / "c"), metrics_port=port)
        with pytest.raises(EbbtideError, match=f":{port}: Address already in use"):
            run_stream(pipeline, settings, options)
    with pytest.raises(UsageError, match=r"serves nothing\. Add --metrics-port"):
        StreamOptions(metrics_host="0.0.0.0")
