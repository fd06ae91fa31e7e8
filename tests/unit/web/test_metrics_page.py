"""The metrics of a checkpoint on the page: the numbers of the endpoint, live, and harmless."""

from __future__ import annotations

import re
from html import unescape
from pathlib import Path

from ebbtide.checkpoint import read_checkpoint
from ebbtide.config import Settings
from ebbtide.history import kept_entries
from ebbtide.history.metrics import MEASURES, count
from ebbtide.history.store import write_entry
from ebbtide.notes import write_note, write_text
from ebbtide.storage import open_folder
from ebbtide.web.context import WebContext
from ebbtide.web.metrics import draw_sparkline
from tests.histories import believable
from tests.trees import Shape, make
from tests.unit.history.test_history import entry
from tests.unit.web.conftest import Visitor, age


def raw(text: str) -> dict[str, str]:
    """The table of names and values."""
    found = re.findall(r"<code>(ebbtide_.*?)</code></td><td [^>]*>(.*?)</td>", text)
    return {unescape(name): value for name, value in found}


def tiles(text: str) -> dict[str, str]:
    return {
        unescape(label): unescape(value)
        for label, value in re.findall(r"<dt>(.*?)</dt>\s*<dd>(.*?)</dd>", text)
    }


def test_the_numbers_are_those_of_the_history(visitor: Visitor, home: Path) -> None:
    answer = visitor.fragment(visitor.place("/metrics"))
    assert answer.status_code == 200
    entries = kept_entries(read_checkpoint(str(home / "checkpoints" / "visits")))
    should = {
        sample.name: sample.value
        for sample in count(list(entries.values())).samples()
        if sample.suffix != "_bucket"
    }
    found = {name.partition("{")[0]: float(value) for name, value in raw(answer.text).items()}
    assert found == should | {"ebbtide_info": 1, "ebbtide_running": 0}
    assert set(found) <= {name for measure in MEASURES for name in measure.served}
    assert 'ebbtide_rows_total{pipeline="visits"}' in raw(answer.text)
    shown = tiles(answer.text)
    assert list(shown) == [
        "Rows per second",
        "Last batch took",
        "Watermark delay",
        "Broken records",
        "State rows",
    ], "nobody knows the lag, nor the state's size"
    assert (shown["Last batch took"], shown["Broken records"]) == ("1.5 s", "6")
    assert shown["Rows per second"] == "2.0", "the minutes between the batches are left out"
    assert "of work in the last 6 batches" in answer.text
    scales = re.findall(r'<dd class="scale">(.*?)</dd>', answer.text)
    assert scales[0] == "2.0 in 6 batches", "of rows per second, not of rows"
    assert "--metrics-port" in answer.text


def test_they_are_live(visitor: Visitor, home: Path) -> None:
    place = visitor.place("/metrics")
    assert f'hx-get="{place}?live" hx-trigger="every 2s"' in visitor.fragment(place).text
    folder = home / "checkpoints" / "visits"
    last = entry(6, lag=5, ended="2026-01-05T10:06:03.000Z", durations={"triggerExecution": 3000})
    write_entry(open_folder(str(folder)), last)
    answer = visitor.fragment(f"{place}?live").text
    assert "<details" not in answer, "one that is open stays open"
    assert '<table id="metrics-values" class="cards" hx-swap-oob="true">' in answer
    assert raw(answer)['ebbtide_last_batch{pipeline="visits"}'] == "6"
    assert (tiles(answer)["Last batch took"], tiles(answer)["Lag"]) == ("3.0 s", "5")


def test_nothing_is_styled_or_scripted_in_place(visitor: Visitor) -> None:
    """What the page's own policy would refuse."""
    text = visitor.get(visitor.place("/metrics")).text
    assert "<h1" in text, "as a page of its own"
    body = text.partition("<main")[2]
    assert not re.search(r"<script|<style|\sstyle=|\son\w+=", body)
    assert body.count("<svg") == 5


def test_without_a_history(home: Path) -> None:
    make(home / "checkpoints" / "bare", Shape(batches=2))
    visitor = Visitor(WebContext(Settings(home=home))).enter()
    answer = visitor.fragment(visitor.place("/metrics", "bare"))
    assert answer.status_code == 200
    assert "There is no history of batches here." in answer.text
    assert raw(answer.text)['ebbtide_batches_total{pipeline="bare"}'] == "0"
    assert visitor.fragment("/checkpoints/none/metrics").status_code == 404


def test_hostile_names_are_harmless(home: Path) -> None:
    folder = home / "checkpoints" / "visits"
    bad = '"}<img src=x onerror=alert(1)>\n'
    write_note(open_folder(str(folder)), "pipeline.json", {"pipeline": bad})
    state = ({"operator": "<script>", "rows": 1, "bytes": 2},)
    write_entry(open_folder(str(folder)), entry(6, state=state, watermark="<b>"))
    age(folder)
    visitor = Visitor(WebContext(Settings(home=home))).enter()
    text = visitor.fragment(visitor.place("/metrics")).text
    assert "<img" not in text
    assert "<script" not in text
    assert "<b>" not in text
    name = next(name for name in raw(text) if name.startswith("ebbtide_state_rows{"))
    assert name == (
        'ebbtide_state_rows{pipeline="\\"}<img src=x onerror=alert(1)>\\n",operator="<script>"}'
    )


def test_thousands_of_batches_are_few_bytes(home: Path) -> None:
    folder = open_folder(str(home / "checkpoints" / "visits"))
    lines = "".join(f"{one.to_json()}\n" for one in believable(2_000)[7:])
    write_text(folder, "history/000000000100-000000002092.jsonl", lines)
    age(home / "checkpoints" / "visits")
    visitor = Visitor(WebContext(Settings(home=home))).enter()
    first = visitor.fragment(visitor.place("/metrics?live"))
    assert raw(first.text)['ebbtide_batches_total{pipeline="visits"}'] == "1993"
    assert len(first.content) < 20_000


def test_lines() -> None:
    assert draw_sparkline([]).path == draw_sparkline([None, None]).path == ""
    assert draw_sparkline([3]).path == "M0 2h0"
    assert draw_sparkline([0, 0]).path == "M0 26h0L120 26"
    assert draw_sparkline([1000, 1001]).path == "M0 26h0L120 2", "far from zero, the change is seen"
    assert draw_sparkline([1, 2], str).words == "1 to 2 in 2 batches"
