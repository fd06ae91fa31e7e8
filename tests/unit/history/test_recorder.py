"""A batch's progress as Spark reports it, and the pipeline's code, as the history keeps them."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from dataclasses import astuple, replace
from pathlib import Path
from typing import Any

import pytest

from ebbtide import Kafka
from ebbtide.connectors.progress import DIGEST
from ebbtide.errors import EbbtideError
from ebbtide.history import Entry, read_history
from ebbtide.history.recorder import Recorder, fingerprint, format_micros
from ebbtide.history.store import FOLDED
from ebbtide.storage import WritableFolder, open_folder
from tests.trees import in_the_way_of
from tests.unit.test_pipeline import PIPELINE

assert isinstance(PIPELINE.source, Kafka)
TOPIC = PIPELINE.source.topic


def progress(**more: Any) -> dict[str, Any]:
    """Of a batch that read ten records, one of them broken, and wrote two rows."""
    metrics = {"records": 10, "broken": 1, "earliest": 1_756_969_200_000_000}
    output = {"rows": 2, "sum": 5}
    source = {"startOffset": {TOPIC: {"0": 5}}, "endOffset": {TOPIC: {"0": 15}}}
    return {
        "batchId": 4,
        "timestamp": "2026-01-05T10:00:00.000Z",
        "numInputRows": 10,
        "durationMs": {"addBatch": 100, "triggerExecution": 1250},
        "eventTime": {"watermark": "1970-01-01T00:00:00.000Z"},
        "stateOperators": [],
        "sources": [source],
        "observedMetrics": {
            "ebbtide": metrics | {"latest": 1_756_969_200_000_001},
            DIGEST: output,
        },
        **more,
    }


def test_an_entry_from_progress(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    entry = Recorder.for_pipeline(folder, PIPELINE).record(progress())
    assert (entry.batch, entry.timeline, entry.rows, entry.broken) == (4, "origin", 10, 1)
    assert (entry.started, entry.ended) == ("2026-01-05T10:00:00.000Z", "2026-01-05T10:00:01.250Z")
    assert entry.sources == (f'{{"{TOPIC}":{{"0":15}}}}',)
    assert entry.event_times == ("2025-09-04T07:00:00.000000Z", "2025-09-04T07:00:00.000001Z")
    assert entry.watermark is None, "there is none yet"
    assert entry.output is not None
    assert entry.output.rows == 2
    assert read_history(folder).entries == (entry,)


def test_entries_are_written_once_the_disk_has_room_again(tmp_path: Path) -> None:
    folder, notes = open_folder(str(tmp_path)), tmp_path / ".ebbtide"
    recorder = Recorder.for_pipeline(folder, PIPELINE)
    recorder.record(progress(batchId=4))
    with in_the_way_of(notes):
        for batch in (5, 6):
            with pytest.raises((OSError, EbbtideError), match="Not a directory"):
                recorder.record(progress(batchId=batch))
    recorder.catch_up()
    recorder.record(progress(batchId=7))
    assert [entry.batch for entry in read_history(folder).entries] == [4, 5, 6, 7]


def test_an_entry_is_not_written_twice_if_folding_fails(tmp_path: Path) -> None:
    recorder = Recorder.for_pipeline(Clumsy(*astuple(open_folder(str(tmp_path)))), PIPELINE)
    for batch in range(FOLDED + 1):
        recorder.record(progress(batchId=batch))
    recorder.catch_up()
    entries = read_history(open_folder(str(tmp_path))).entries
    assert [entry.batch for entry in entries] == list(range(FOLDED + 1))


class Clumsy(WritableFolder):
    """A folder with room for small files only."""

    def changing(self, what: str, path: str) -> None:
        if what == "write" and "-" in path:
            raise OSError(28, "No space left on device")


def test_what_nobody_read_is_not_taken_for_nothing(tmp_path: Path) -> None:
    """A sink that has seen the batch passes over it: then Spark counts nothing, not none."""
    recorder = Recorder.for_pipeline(open_folder(str(tmp_path)), PIPELINE)
    nothing = {DIGEST: {"rows": 0, "sum": None}}
    skipped = recorder.entry(progress(numInputRows=0, observedMetrics=nothing))
    assert (skipped.output, skipped.event_times) == (None, None)
    # a batch without records writes what the watermark has closed
    same = {TOPIC: {"0": 15}}
    still = [{"startOffset": same, "endOffset": same}]
    empty = recorder.entry(progress(numInputRows=0, observedMetrics=nothing, sources=still))
    assert empty.output is not None
    assert empty.output.rows == 0


def test_event_times_of_a_part_are_not_those_of_the_batch(tmp_path: Path) -> None:
    recorder = Recorder.for_pipeline(open_folder(str(tmp_path)), PIPELINE)
    seen = progress()["observedMetrics"]
    part = recorder.entry(progress(observedMetrics=seen | {"ebbtide-read": {"records": 3}}))
    assert part.event_times is None


@pytest.mark.parametrize(
    ("latest", "lag"),
    [
        ({TOPIC: {"0": 15}}, 0),
        ({TOPIC: {"0": 20, "1": 7}}, 12),  # a partition that it has not read from yet
        ({TOPIC: {"0": 3}}, 0),  # a topic that was made anew
        (None, None),  # planned before the query started again
    ],
)
def test_how_far_the_topic_was_ahead(tmp_path: Path, latest: Any, lag: int | None) -> None:
    recorder = Recorder.for_pipeline(open_folder(str(tmp_path)), PIPELINE)
    source = progress()["sources"][0] | {"latestOffset": latest}
    assert recorder.entry(progress(sources=[source])).lag == lag
    # a second topic counts too, another source does not
    files = {"startOffset": None, "endOffset": {"logOffset": 3}, "latestOffset": {"logOffset": 9}}
    assert recorder.entry(progress(sources=[source, files])).lag == lag
    assert recorder.entry(progress(sources=[files])).lag is None
    more = {"startOffset": None, "endOffset": {"u": {"0": 1}}, "latestOffset": {"u": {"0": 4}}}
    both = recorder.entry(progress(sources=[source, more])).lag
    assert both == (None if lag is None else lag + 3)


def test_entries_from_before_the_lag_was_kept() -> None:
    found = json.loads(Entry(3, "origin", "", "", (), rows=5, lag=7).to_json())
    assert Entry.from_json(json.dumps(found)).lag == 7
    del found["lag"]
    assert Entry.from_json(json.dumps(found)).lag is None


def test_times_beyond_the_calendar() -> None:
    assert format_micros(10**18) == "9999-12-31T23:59:59.999999Z"
    assert format_micros(-(10**18)) == "0001-01-01T00:00:00.000000Z"


MAIN = """
from ebbtide import Console, Kafka, Pipeline
from helping import keep

def transform(rows):
    return keep(rows)

pipeline = Pipeline(
    "p", source=Kafka("t", schema="at TIMESTAMP", options={"kafka.sasl.jaas.config": "SECRET"}),
    event_time="at", transform=transform, sink=Console(),
)
"""


def fingerprints_of(folder: Path, *codes: dict[str, str]) -> list[str]:
    """As a process of its own sees these codes, each of them modules and their texts, in turn."""
    program = """
    import importlib, json, sys
    from pathlib import Path
    from ebbtide.systems import find_pipeline
    from ebbtide.history.recorder import fingerprint
    sys.dont_write_bytecode = True
    for code in json.loads(sys.argv[1]):
        for name, text in code.items():
            sys.modules.pop(name, None)
            Path(f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        print(fingerprint(find_pipeline("mine:pipeline")))
    """
    answer = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), json.dumps(codes)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=True,
    )
    return answer.stdout.split()


def test_the_fingerprint_of_code(tmp_path: Path) -> None:
    code = {"mine": MAIN, "helping": "def keep(rows):\n    return rows\n"}
    helped = code | {"helping": "def keep(rows):\n    return rows.where('n > 3')\n"}
    changed = code | {"mine": MAIN.replace("keep(rows)", "keep(rows).limit(3)")}
    first, *others = fingerprints_of(tmp_path, code, helped, changed)
    assert len({first, *others}) == 3
    assert fingerprints_of(tmp_path, code) == [first]


@pytest.mark.parametrize(
    "change", [{"watermark": "3 hours"}, {"output_mode": "update"}, {"event_time": "other"}]
)
def test_what_a_pipeline_says_is_part_of_its_code(change: dict[str, Any]) -> None:
    assert fingerprint(replace(PIPELINE, **change)) != fingerprint(PIPELINE)


def test_options_and_settings_are_not() -> None:
    assert isinstance(PIPELINE.source, Kafka)
    secret = replace(PIPELINE.source, options={"kafka.sasl.jaas.config": "SECRET"})
    changed = replace(PIPELINE, source=secret, conf={"spark.secret": "SECRET"})
    assert fingerprint(changed) == fingerprint(PIPELINE)


def test_functions_typed_into_a_shell() -> None:
    def typed(text: str) -> str:
        names: dict[str, Any] = {"__name__": "nowhere"}
        exec(f"def transform(rows):\n    return rows.where({text!r})", names)
        return fingerprint(replace(PIPELINE, transform=names["transform"]))

    assert typed("n > 3") == typed("n > 3") != typed("n > 4")
