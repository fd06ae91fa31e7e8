"""The state on the page, as far as it is known before Spark reads it."""

from __future__ import annotations

import html
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.formatting import format_bytes
from ebbtide.state.parts import StatePart, list_parts, list_readable, measure
from ebbtide.web import state, worker
from ebbtide.web.context import WebContext
from tests.trees import JOIN_STORES, Shape, make
from tests.unit.state.test_parts import VARIABLES, variables
from tests.unit.web.conftest import Visitor

SCRIPT = "<script>alert(1)</script>"
ANSWER = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    text = {"text": "<script>alert(1)</script>", "bytes": 25, "cut": False}
    long = {"text": "<b>" * 600, "bytes": 1048576, "cut": True}
    row = {"key": text, "value": long, "partition": 1}
    change = {"kind": "changed", "key": text, "old": text, "new": long, "summary": ""}
    said = [{**change, "kind": "added", "summary": "count <1> → 2"}, change]
    said[0]["key"] = {"text": json.dumps(asked), "bytes": 1, "cut": False}
    none = asked["contains"] == "none"
    reply = {"count": 120, "first": [row]} if asked["do"] == "show" else {
        "counts": {"added": 1, "changed": 1, "removed": 0}, "first": said}
    if none:
        reply = {"count": 0, "first": [], "counts": dict.fromkeys(("added", "removed"), 0)}
    print(json.dumps({"answer": reply}), flush=True)
"""


@pytest.fixture
def place(home: Path) -> Path:
    folder = home / "checkpoints" / "visits"
    shutil.rmtree(folder)
    return make(folder, Shape("changelog", operators=2))


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch, home: Path) -> Visitor:
    """A page whose worker speaks at once; the real one is tested with Spark."""

    def quick(settings: Settings) -> worker.Worker:
        return worker.Worker(settings, (sys.executable, "-S", "-c", ANSWER))

    monkeypatch.setattr(state, "Worker", quick)
    return Visitor(WebContext(Settings(home=home))).enter()


def look(visitor: Visitor, path: str) -> Any:
    return visitor.get(visitor.place(path))


@pytest.mark.parametrize(
    ("shape", "parts"),
    [
        (Shape(), []),
        (Shape("hdfs", operators=2), [StatePart(0), StatePart(1)]),
        (
            Shape("v2", stores=JOIN_STORES),
            [
                *(StatePart(0, side=side, many=True) for side in ("left", "right")),
                *(StatePart(0, store=store) for store in JOIN_STORES),
            ],
        ),
    ],
)
def test_every_part_is_listed(shape: Shape, parts: list[StatePart], tmp_path: Path) -> None:
    assert list_parts(read_checkpoint(str(make(tmp_path / "c", shape)))) == parts


def test_variables_and_timers_are_listed(tmp_path: Path) -> None:
    found = list_parts(read_checkpoint(str(variables(tmp_path / "c", list(VARIABLES)))))
    assert [str(part) for part in found] == [
        *(f"operator 0, variable {name}" for name in ("pages", "seen", "total")),
        "operator 0, timers",
    ]
    assert [part.many for part in found] == [False, True, False, True]
    none = list_parts(read_checkpoint(str(variables(tmp_path / "n", ["total"], "NoTime"))))
    assert none == [StatePart(0, variable="total")]


def test_the_page_says_what_can_be_read_before_spark_starts(visitor: Visitor, place: Path) -> None:
    checkpoint = read_checkpoint(str(place))
    page = look(visitor, "/state?batch=4&filter=%22%3Cb%3E").text
    assert "State after batch 4" in page
    assert "Starting Spark, about ten seconds the first time" in page
    assert "<b>" not in page
    links = [html.unescape(link) for link in re.findall(r'href="([^"]*)"', page)]
    base = visitor.place("/state")
    for other in (3, 5):
        assert f"{base}?operator=0&batch={other}&filter=%22%3Cb%3E" in links
    assert f"{base}?operator=1&batch=4&filter=%22%3Cb%3E" in links
    assert f"{base}/diff?operator=0&to=4&filter=%22%3Cb%3E" in links
    rows = re.search(r'hx-get="([^"]*)"', page)
    assert rows is not None
    wanted = f"{base}/rows?operator=0&batch=4&filter=%22%3Cb%3E&limit=50"
    assert html.unescape(rows[1]) == wanted
    size = measure(checkpoint, StatePart(0), 4)
    assert f"Operator 0, {format_bytes(size)}" in page
    assert list_readable(checkpoint, StatePart(0)) == list(range(7))
    page = look(visitor, "/state/diff?to=5").text
    assert "What changed in the state from batch 4 to 5" in page


@pytest.mark.parametrize(
    ("path", "said", "status"),
    [
        ("/state?batch=99", "Batch 99 has no commit", 200),
        ("/state?batch=%3Cb%3E", "is not a number", 422),
        ("/state?operator=7", "no operator 7 with state", 422),
        ("/state?operator=0&side=left", "has no side", 422),
        ("/state/diff?from=5&to=5", "Batch 5 (--from) is not before batch 5", 422),
        (f"/state?filter={'x' * 1001}", "too long", 422),
    ],
)
def test_what_cannot_be_read_is_said(
    visitor: Visitor, place: Path, path: str, said: str, status: int
) -> None:
    del place
    answer = look(visitor, path)
    assert answer.status_code == status
    assert said in answer.text
    assert "state-rows" not in answer.text
    assert 'id="options"' in answer.text, "one can correct it"
    assert "<b>" not in answer.text


@pytest.mark.parametrize("batch", ["99", "none"])
def test_a_wrong_batch_does_not_change_the_part(visitor: Visitor, place: Path, batch: str) -> None:
    del place
    page = look(visitor, f"/state?operator=1&batch={batch}&filter=page").text
    assert '<input type="hidden" name="operator" value="1">' in page
    assert re.search(r'<input[^>]* name="filter"[^>]* value="page"', page)
    assert f'name="batch" inputmode="numeric" size="8" value="{batch}"' in page


def test_a_query_without_state(visitor: Visitor) -> None:
    answer = look(visitor, "/state")
    assert answer.status_code == 200
    assert "keeps no state" in answer.text


def test_nothing_found_is_said(answered: Visitor, place: Path) -> None:
    del place
    page = answered.fragment(answered.place("/state/rows?filter=none")).text
    assert "No key contains “none”." in page
    page = answered.fragment(answered.place("/state/diff/rows?filter=none")).text
    assert "Nothing changed in a key that contains “none”." in page


def test_rows_and_changes_are_text(answered: Visitor, place: Path) -> None:
    path = answered.place("/state/rows?operator=1&batch=4")
    page = answered.fragment(path).text
    assert "<html" not in page
    assert SCRIPT not in page
    assert "<b>" not in page
    assert html.escape(SCRIPT) in page
    assert "1 of 120 rows" in page
    assert "cut: 1,800 characters of 1.0 MiB are shown" in page
    assert "limit=200" in page
    page = answered.fragment(answered.place("/state/diff/rows?from=2&to=4&filter=A%27b")).text
    assert "1 added, 1 changed, 0 removed" in page
    assert "count &lt;1&gt; → 2" in page
    assert "<b>" not in page
    asked = re.search(r">(\{.*?\})</pre>", page)
    assert asked is not None
    assert html.unescape(asked[1]) == (
        f'{{"do": "diff", "location": "{place}", "part": {{"operator": 0, "side": null, '
        '"store": null, "variable": null, "timers": false}, "contains": "A\'b", '
        '"limit": 50, "before": 2, "after": 4}'
    )
    answered.context.tasks.close()
    # what was read is remembered; what was not can no longer be
    assert "1 of 120 rows" in answered.fragment(path).text
    answer = answered.fragment(answered.place("/state/rows?batch=3"))
    assert answer.status_code == 409
    assert "shutting down" in answer.text
