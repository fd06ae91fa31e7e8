"""What the history says in numbers, and the endpoint, the dashboard and the document beside it."""

from __future__ import annotations

import math
import re
import urllib.request
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parse_openmetrics,
)
from prometheus_client.parser import text_string_to_metric_families

from ebbtide.connectors import progress
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.history import Entry, Output
from ebbtide.history.metrics import BUCKETS, MEASURES, BatchTotals, count, rate, state_size
from ebbtide.runtime.metrics_endpoint import Metrics, serve_metrics
from ebbtide.version import __version__
from tests.histories import believable
from tests.unit.history.test_history import entry

ROOT = Path(__file__).parents[3]
STATE = {"rows": 7, "updated": 3, "removed": 1, "dropped": 2, "bytes": 4096}
FULL = entry(
    4,
    lag=12,
    durations={"addBatch": 1000, "triggerExecution": 1500},
    state=({"operator": "stateStoreSave", **STATE}, {"operator": "stateStoreSave", **STATE}),
    late=progress.LateRecords(31),
)
BARE = Entry(0, "origin", "", "", (), rows=0)


def values(tally: BatchTotals) -> dict[str, float]:
    """By name and labels, as they are written."""
    return {
        sample.name + "".join(f" {value}" for value in sample.labels.values()): sample.value
        for sample in tally.samples()
    }


def test_what_batches_did_together() -> None:
    found = values(count([entry(3, output=Output(5, "d")), FULL]))
    assert {name: value for name, value in found.items() if "_bucket" not in name} == {
        "ebbtide_batches_total": 2,
        "ebbtide_rows_total": 6,
        "ebbtide_broken_records_total": 2,
        "ebbtide_late_records_total": 31,
        "ebbtide_output_rows_total": 7,
        "ebbtide_last_batch": 4,
        "ebbtide_last_batch_timestamp_seconds": 1_767_607_441.5,
        "ebbtide_batch_duration_seconds addBatch": 1.0,
        "ebbtide_batch_duration_seconds triggerExecution": 1.5,
        "ebbtide_trigger_execution_seconds_sum": 3.0,
        "ebbtide_trigger_execution_seconds_count": 2,
        "ebbtide_lag_records": 12,
        "ebbtide_watermark_timestamp_seconds": 1_756_968_600,
        "ebbtide_watermark_delay_seconds": 10_638_841.5,
        "ebbtide_event_time_latest_timestamp_seconds": 1_756_969_499.999999,
        "ebbtide_state_rows stateStoreSave": 7,
        "ebbtide_state_rows stateStoreSave-2": 7,
        "ebbtide_state_bytes stateStoreSave": 4096,
        "ebbtide_state_bytes stateStoreSave-2": 4096,
        "ebbtide_state_updated_rows_total stateStoreSave": 3,
        "ebbtide_state_updated_rows_total stateStoreSave-2": 3,
        "ebbtide_state_removed_rows_total stateStoreSave": 1,
        "ebbtide_state_removed_rows_total stateStoreSave-2": 1,
        "ebbtide_late_rows_dropped_total stateStoreSave": 2,
        "ebbtide_late_rows_dropped_total stateStoreSave-2": 2,
    }
    assert found["ebbtide_trigger_execution_seconds_bucket 1.0"] == 0
    assert found["ebbtide_trigger_execution_seconds_bucket 2.5"] == 2
    assert found["ebbtide_trigger_execution_seconds_bucket +Inf"] == 2


def test_what_is_not_known_is_absent() -> None:
    zeros = {"ebbtide_batches_total", "ebbtide_rows_total", "ebbtide_broken_records_total"}
    assert values(BatchTotals()) == dict.fromkeys(zeros, 0)
    found = values(count([BARE]))
    took = "ebbtide_trigger_execution_seconds"
    assert {name for name in found if not name.startswith(took)} == zeros | {"ebbtide_last_batch"}
    assert all(math.isfinite(value) for value in found.values())
    # beyond the calendar, as a watermark of broken event times may be
    wild = entry(1, watermark="+292278994-08-17T07:12:55.807Z", event_times=("x", "9999-12-31"))
    assert "ebbtide_watermark_delay_seconds" not in values(count([wild]))


def test_one_by_one_is_the_same_as_all_at_once() -> None:
    batches = [entry(n, lag=n, durations={"triggerExecution": 90 * n * n}) for n in range(30)]
    batches += [BARE, FULL, entry(1, output=None)]
    tally = BatchTotals()
    for batch in batches:
        tally += count([batch])
    assert values(tally) == pytest.approx(values(count(batches)))
    assert len(tally.took) == len(BUCKETS) + 1
    assert sum(tally.took) == 32, "one does not say how long it took"


def test_the_rate_and_the_state() -> None:
    assert rate([entry(0), entry(1)]) == pytest.approx(6 / 3), "a minute lies between them"
    assert rate([entry(0), BARE, entry(1)]) == pytest.approx(6 / 3), "one says nothing of its time"
    assert rate([]) is rate([BARE]) is None
    assert rate([entry(0, durations={"triggerExecution": 0})]) is None, "in no time"
    assert (state_size(FULL, "rows"), state_size(FULL, "bytes")) == (14, 8192)
    assert state_size(BARE, "rows") is None


def test_a_pause_does_not_lower_the_rate() -> None:
    steady, paused = believable(10), believable(10, pause_at=5)
    assert paused[5].started > steady[5].started
    seconds = sum(one.durations["triggerExecution"] for one in paused) / 1000
    assert rate(steady) == rate(paused) == pytest.approx(sum(e.rows for e in paused) / seconds)


def test_every_measure_follows_the_conventions() -> None:
    names = [measure.name for measure in MEASURES]
    assert len(set(names)) == len(names)
    for measure in MEASURES:
        assert re.fullmatch(r"ebbtide_[a-z_]+", measure.name)
        assert (measure.kind == "counter") == measure.name.endswith("_total")
        assert measure.help.endswith(".")
    # in the order in which they are served
    order = [sample.measure for sample in count([FULL]).samples()]
    assert list(dict.fromkeys(order)) == list(MEASURES[2:])


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def served(said: list[str]) -> Iterator[Metrics]:
    with serve_metrics('visits "<b>"', 0, None, said.append) as metrics:
        yield metrics


def scrape(said: list[str], accept: str = "text/plain") -> str:
    asked = urllib.request.Request(said[0].rpartition(" ")[2], headers={"Accept": accept})
    with urllib.request.urlopen(asked) as answer:
        text: str = answer.read().decode()
    return text


def test_the_endpoint(served: Metrics, said: list[str]) -> None:
    assert re.fullmatch(r"Metrics for Prometheus: http://127\.0\.0\.1:\d+/metrics", said[0])
    first = {family.name: family for family in text_string_to_metric_families(scrape(said))}
    assert first["ebbtide_info"].samples[0].labels == {
        "version": __version__,
        "spark": version("pyspark"),
        "pipeline": 'visits "<b>"',
    }
    assert first["ebbtide_running"].samples[0].value == 0, "Spark is still starting"
    assert first["ebbtide_rows"].samples[0].value == 0
    served.running = True
    for batch in (entry(3), FULL):
        served.observe(batch)
    text = scrape(said)
    found = {
        name: value
        for family in text_string_to_metric_families(text)
        for name, _, value, *_ in family.samples
    }
    assert set(found) == {name for measure in MEASURES for name in measure.served}
    assert (found["ebbtide_running"], found["ebbtide_rows_total"]) == (1, 6)
    for measure in MEASURES:
        assert f"# HELP {measure.name} {measure.help}\n# TYPE {measure.name} {measure.kind}" in text
    # what a newer Prometheus asks for
    newer = scrape(said, "application/openmetrics-text; version=1.0.0")
    families = parse_openmetrics(newer)  # type: ignore[no-untyped-call]
    assert len(list(families)) == len(MEASURES)


def test_a_failure_is_said_once_and_stops_nothing(served: Metrics, said: list[str]) -> None:
    bad: Any = entry(3, state=({"dropped": "many"},))
    for _ in range(3):
        served.observe(bad)
    assert [line[:20] for line in said[1:]] == ["Warning: batch 3 is "]
    served.observe(entry(4))
    assert "ebbtide_batches_total" in scrape(said)


@pytest.mark.usefixtures("served")
def test_an_address_that_is_not_to_be_had(said: list[str]) -> None:
    port = int(re.findall(r":(\d+)/", said[0])[0])
    taken = pytest.raises(EbbtideError, match=rf":{port}: Address already in use\. Name another")
    with taken, serve_metrics("p", port, None, said.append):
        pass
    for host in ("192.0.2.1", "no such name"):
        none = pytest.raises(UsageError, match=f"This machine has no address {host}")
        with none, serve_metrics("p", 0, host, said.append):
            pass
    assert len(said) == 1


def test_the_endpoint_is_gone_afterwards(said: list[str]) -> None:
    with serve_metrics("p", 0, "::1", said.append):
        assert "http://[::1]:" in said[0]
    with pytest.raises(OSError, match="refused"):
        scrape(said)
    with serve_metrics("p", None, None, said.append) as metrics:
        metrics.observe(FULL)
    assert len(said) == 1, "without a port nothing listens"


def test_the_document_lists_every_measure() -> None:
    text = (ROOT / "docs" / "production" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `(ebbtide_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", text, re.M)
    assert rows == [
        (m.name, m.kind, ", ".join(f"`{label}`" for label in m.labels), m.help) for m in MEASURES
    ]
