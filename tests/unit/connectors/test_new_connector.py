"""A connector that nobody in Ebbtide has heard of takes part in all that needs no Spark."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ebbtide import Pipeline
from ebbtide.checkpoint import Owner, read_checkpoint
from ebbtide.config import Settings
from ebbtide.connectors import connector_of, connector_of_offset, register, registry
from ebbtide.report.messages import list_returning_sinks, list_sinks
from ebbtide.report.overview import format_end, format_keeper, format_source
from ebbtide.retention.limits import read_windows
from ebbtide.rewind import RewindPlan, RewindRequest, apply_rewind, plan_rewind, undo_rewind
from ebbtide.rewind.target import ToBatch
from ebbtide.runtime.ownership import claim
from tests.ledger import AUDITED, CONNECTOR, Ledger
from tests.trees import build

LAST = 3
"""The last batch; each has read one line and written one page."""


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    register(CONNECTOR)


@pytest.fixture
def pipeline(tmp_path: Path) -> Pipeline:
    (tmp_path / "lines").write_text("".join(f"{n}\n" for n in range(LAST + 1)))
    (tmp_path / "out").mkdir()
    for n in range(LAST + 1):
        (tmp_path / "out" / f"{n}.json").write_text(f"[{n}]")
    return Pipeline(
        "copy",
        source=Ledger(str(tmp_path / "lines")),
        event_time="at",
        transform=lambda rows: rows,
        sink=Ledger(str(tmp_path / "out")),
    )


@pytest.fixture
def checkpoint(tmp_path: Path, pipeline: Pipeline) -> Path:
    """As its runs have left it, with their note."""
    folder = build(tmp_path / "c", LAST + 1, LAST + 1)
    for n in range(LAST + 1):
        entry = folder / "offsets" / str(n)
        *head, _ = entry.read_text().splitlines()
        entry.write_text("\n".join([*head, json.dumps({"line": n + 1})]))
        (folder / "offsets" / f".{n}.crc").unlink(missing_ok=True)
    with claim(str(folder), pipeline, Settings(home=tmp_path)):
        pass
    return folder


def plan(checkpoint: Path) -> RewindPlan:
    return plan_rewind(RewindRequest(str(checkpoint), ToBatch(2), assume_stopped=True))


def pages(tmp_path: Path) -> list[str]:
    return sorted(page.stem for page in (tmp_path / "out").glob("*.json"))


def test_its_values_and_offsets_lead_to_it(pipeline: Pipeline) -> None:
    assert connector_of(pipeline.sink) is connector_of("ledger") is CONNECTOR
    assert connector_of_offset('{"line": 3}') is CONNECTOR
    assert format_source({"line": 3}) == "line 3"


def test_a_rewind_asks_its_source_and_rolls_its_sink_back(checkpoint: Path, tmp_path: Path) -> None:
    found = plan(checkpoint)
    details = {check.name: check.detail for check in found.checks}
    assert found.refusals == ()
    assert details["source"] == "the ledger has 4 of 4 lines"
    assert details["sink"] == "2 pages of the ledger are set aside"
    assert found.sources[0]["kind"] == "ledger"
    assert RewindPlan.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    backup = apply_rewind(found, assume_stopped=True)
    assert pages(tmp_path) == ["0", "1"]
    assert list_sinks(backup) == ["2 pages of the ledger are set aside."]
    assert list_returning_sinks(backup) == ["2 pages of the ledger come back."]
    undo_rewind(str(checkpoint), assume_stopped=True)
    assert pages(tmp_path) == ["0", "1", "2", "3"]


def test_lines_that_are_gone_stop_a_rewind(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("0\n")
    assert [check.detail for check in plan(checkpoint).refusals] == ["the ledger has 1 of 4 lines"]


def test_its_retention_closes_the_window(checkpoint: Path) -> None:
    windows = read_windows(read_checkpoint(str(checkpoint)), Owner(), None, now=AUDITED)
    window = windows.by_batch[2]
    assert (window.until, window.closes_first) == (AUDITED, "ledger")
    assert format_end(window) == "the ledger closes it first, not before 2030-01-01 00:00"
    assert format_keeper("ledger") == "the ledger"


def test_without_it_nothing_is_claimed(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_REGISTERED", {})
    details = {check.name: check.detail for check in plan(checkpoint).checks}
    assert details["source"] == "whether source 0 still holds the range cannot be seen from here"
    assert details["sink"] == "the ledger gets the output of batches 2 to 3 again"
