"""The dashboard for Grafana: it asks only for what the endpoint serves, and its panels fit."""

from __future__ import annotations

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ebbtide.history.metrics import MEASURES

DASHBOARD: dict[str, Any] = json.loads(
    (Path(__file__).parents[2] / "docs" / "grafana" / "ebbtide.json").read_text("utf-8")
)
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]]
SERVED = {name: measure for measure in MEASURES for name in measure.served}
WORDS = {"sum", "by", "rate", "increase", "time", "histogram_quantile"}
TOKEN = re.compile(
    r"""\s*(?:
        (?P<name>[a-zA-Z_]\w*)
      | (?P<number>\d+(?:\.\d+)?)
      | (?P<text>"(?:[^"\\]|\\.)*")
      | (?P<range>\[(?:\$__rate_interval|\d+[smhd])\])
      | (?P<sign>[-+*/(),{}]|=~|!=|=)
    )""",
    re.VERBOSE,
)


def tokens(expression: str) -> list[tuple[str, str]]:
    """The parts of an expression; a sign that PromQL lacks fails, a wrong order does not."""
    found, at = [], 0
    while at < len(expression.rstrip()):
        match = TOKEN.match(expression, at)
        assert match is not None, expression[at:]
        assert match.lastgroup is not None
        found.append((match.lastgroup, match[match.lastgroup]))
        at = match.end()
    return found


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_it_asks_for_what_is_served(expression: str) -> None:
    open_: list[str] = []
    labels: set[str] = set()
    asked: list[str] = []
    for kind, token in tokens(expression):
        if token in ("(", "{"):
            open_.append(token)
        elif token in (")", "}"):
            assert open_.pop() + token in ("()", "{}")
        elif kind == "name" and token not in WORDS:
            if token.startswith("ebbtide_"):
                asked.append(token)
            else:
                labels.add(token)
    assert not open_
    assert asked
    assert set(asked) <= set(SERVED)
    assert len(re.findall(r'pipeline=~"\$pipeline"', expression)) == len(asked), "each is filtered"
    known = {label for name in asked for label in SERVED[name].labels} | {"pipeline", "le"}
    assert labels <= known
    for name in asked:
        measure = SERVED[name]
        counts = measure.kind == "counter" or measure.kind == "histogram"
        assert counts == bool(re.search(rf"(?:rate|increase)\({name}\b", expression))


def test_every_legend_names_labels_that_are_there() -> None:
    for panel in PANELS:
        for target in panel["targets"]:
            used = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            (by,) = re.findall(r"sum by \(([^)]*)\)", target["expr"])[:1] or [""]
            names = re.findall(r"ebbtide_\w+", target["expr"])
            has = set(by.split(", ")) if by else {"pipeline", *SERVED[names[0]].labels}
            assert used <= has, panel["title"]


def test_every_kind_of_measure_is_shown() -> None:
    asked = {name for text in EXPRESSIONS for name in re.findall(r"ebbtide_\w+", text)}
    left = {m.name for m in MEASURES if not asked & set(m.served)}
    assert left == {
        "ebbtide_info",  # names the pipelines
        "ebbtide_batches_total",
        "ebbtide_watermark_timestamp_seconds",
        "ebbtide_event_time_latest_timestamp_seconds",
        "ebbtide_state_updated_rows_total",
        "ebbtide_state_removed_rows_total",
        "ebbtide_late_rows_dropped_total",
    }


def test_panels_have_their_own_places() -> None:
    ids = [panel["id"] for panel in PANELS]
    assert len(set(ids)) == len(ids)
    places = [panel["gridPos"] for panel in PANELS]
    for place in places:
        assert place["x"] >= 0
        assert place["x"] + place["w"] <= 24
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    for panel in PANELS:
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs)


def test_it_can_be_imported_anywhere() -> None:
    """The data source and the pipelines are chosen on the dashboard."""
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert variables["datasource"]["query"] == "prometheus"
    assert variables["pipeline"]["definition"] == "label_values(ebbtide_info, pipeline)"
    sources = re.findall(r'"uid": ?"([^"]*)"', json.dumps(DASHBOARD))
    assert set(sources) == {"${datasource}", DASHBOARD["uid"]}
    assert DASHBOARD["id"] is None
