"""The list of checkpoints: their status, their labels, and what is forgotten."""

from __future__ import annotations

import html
import json
import re
import socket
import time
from pathlib import Path
from urllib.parse import urlencode

import pytest

from ebbtide.config import Settings
from ebbtide.history.store import write_entry
from ebbtide.rewind.holders import RUN
from ebbtide.rewind.lease import hold_lease
from ebbtide.storage import open_folder, open_writable
from ebbtide.web.audit import COMMAND, WEB, merge_changes
from ebbtide.web.context import WebContext
from tests.trees import Shape, make, snapshot
from tests.unit.history.test_history import entry
from tests.unit.web.conftest import Visitor, rewind
from tests.unit.web.test_pages import plain


def row(visitor: Visitor, name: str = "visits") -> str:
    return visitor.fragment(visitor.place("/facts?row=1", name)).text


def status(visitor: Visitor, name: str = "visits") -> str:
    found = re.search(r'<tr [^>]*data-status="([^"]*)"', row(visitor, name))
    assert found
    return found[1]


def test_a_query_is_stopped_or_running_or_may_be(visitor: Visitor, home: Path) -> None:
    place = home / "checkpoints" / "visits"
    assert status(visitor) == "stopped"
    last = (place / "offsets" / "6").read_text()
    now = str(int(time.time() * 1000))
    (place / "offsets" / "7").write_text(last.replace("1006", now))
    assert status(visitor) == "may be running"
    assert " s ago" in plain(row(visitor))
    with hold_lease(open_writable(str(place)), RUN):
        assert status(visitor) == "running"
        assert "process" in plain(row(visitor))
    assert status(visitor) == "stopped"  # its run has ended


def test_what_cannot_be_read_is_broken_or_unreachable(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    pytest.importorskip("aiohttp")
    gone = f"http://127.0.0.1:{port}/gone"  # nobody listens there any more
    (home / "checkpoints" / "visits" / "offsets" / "3").write_text("v9")
    visitor = Visitor(WebContext(Settings(home=home), opened=(gone,))).enter()
    assert status(visitor) == "broken"
    assert status(visitor, "gone") == "unreachable"
    assert "Check the address" in row(visitor, "gone")


def test_warnings(visitor: Visitor, home: Path) -> None:
    assert "broken record" not in row(visitor)
    place = home / "checkpoints" / "visits"
    write_entry(open_folder(str(place)), entry(6, broken=1200))
    (place / "offsets" / "notes.txt").touch()
    assert re.findall('class="warning">([^<]*)<', row(visitor)) == [
        "1 unknown file",
        "1,200 broken records in batch 6",
    ]


@pytest.fixture
def twins(home: Path) -> Visitor:
    """Two checkpoints whose folders have the same name, of different queries."""
    places = []
    for job, query in (("a", "orders"), ("b", "pages")):
        place = make(home / job / "checkpoint", Shape(layout="hdfs"))
        note = place / ".ebbtide" / "pipeline.json"
        note.parent.mkdir(exist_ok=True)
        note.write_text(json.dumps({"pipeline": query}))
        places.append(str(place))
    return Visitor(WebContext(Settings(home=home), opened=tuple(places))).enter()


def test_two_folders_of_one_name_are_told_apart(twins: Visitor, home: Path) -> None:
    keys = {one.label: one.key for one in twins.context.snapshots.entries()}
    assert set(keys) == {"a/checkpoint", "b/checkpoint", "visits"}
    for job, query in (("a", "orders"), ("b", "pages")):
        place = f"/checkpoints/{keys[f'{job}/checkpoint']}"
        said = plain(twins.fragment(f"{place}/facts?row=1").text)
        assert f"{job}/checkpoint query {query} {home}/{job}/checkpoint" in said
        paths = ("", "/batches/3", "/rewind?to_batch=4", "/undo", "/reprocess", "/state")
        for path in (*paths, "/state/diff", "/metrics", "/batches/3/records"):
            page = twins.get(f"{place}{path}").text
            title = re.search("<title>(.*)</title>", page)
            assert title
            assert f"{query} · {job}/checkpoint · Ebbtide" in title[1], path
            assert re.search(f"(<h1[^>]*>|<li><a[^>]*>){query} · {job}/checkpoint<", page), path


def test_what_is_confirmed_is_told_apart(twins: Visitor) -> None:
    key = next(o.key for o in twins.context.snapshots.entries() if o.label == "a/checkpoint")
    asked = {"to_batch": "4", "sink": "none", "assume_stopped": "on"}
    page = twins.get(f"/checkpoints/{key}/rewind?{urlencode(asked)}").text
    assert "Type <code>a/checkpoint</code> to confirm" in page
    plan = re.search('name="plan" value="([^"]*)"', page)
    assert plan
    answer = twins.post(
        f"/checkpoints/{key}/rewind", **asked, plan=html.unescape(plan[1]), confirm="checkpoint"
    )
    assert answer.status_code == 422
    assert "Type a/checkpoint to confirm." in answer.text


def test_a_forgotten_one_is_not_listed_and_not_changed(visitor: Visitor, home: Path) -> None:
    folder = home / "checkpoints" / "visits"
    before, key = snapshot(folder), visitor.key()
    answer = visitor.post(f"/checkpoints/{key}/forget", {"HX-Request": "true"})
    assert "visits is no longer in the list. Nothing on disk has changed." in plain(answer.text)
    assert visitor.context.snapshots.entries() == []
    assert "No checkpoint is known here yet" in visitor.get("/").text
    assert snapshot(folder) == before
    last = visitor.context.audit.read()[0]
    assert (last["action"], last["target"]) == ("forget", str(folder))
    later = Visitor(WebContext(Settings(home=home))).enter()
    assert later.context.snapshots.entries() == []
    named = WebContext(Settings(home=home), opened=(str(folder),))
    assert [one.location for one in named.snapshots.entries()] == [str(folder)]
    assert later.post("/checkpoints", location=str(folder)).status_code == 303
    again = Visitor(WebContext(Settings(home=home))).enter()
    assert [one.key for one in again.context.snapshots.entries()] == [key], "used, so listed again"


def test_a_forgotten_one_is_put_back(visitor: Visitor, home: Path) -> None:
    """Even one that cannot be read, which could not be opened."""
    (home / "checkpoints" / "visits" / "offsets" / "3").write_text("v9")
    key = visitor.key()
    assert visitor.post(f"/checkpoints/{key}/forget").status_code == 303
    row = visitor.post(f"/checkpoints/{key}/remember", {"HX-Request": "true"}).text
    assert f'hx-get="/checkpoints/{key}/facts?row=1"' in row
    assert [one.key for one in visitor.context.snapshots.entries()] == [key]
    assert visitor.post("/checkpoints/nothing-1/forget").status_code == 404


def test_nothing_is_forgotten_when_reading_only(home: Path) -> None:
    reader = Visitor(WebContext(Settings(home=home), read_only=True)).enter()
    assert "Forget<" not in row(reader)
    assert reader.post(reader.place("/forget")).status_code == 403
    assert reader.context.snapshots.entries()


def test_what_others_changed_is_in_the_audit_log(visitor: Visitor, home: Path) -> None:
    """A rewind that did not come from the web UI, as one at the command line."""
    place = rewind(home, 5)
    page = visitor.get("/audit").text
    assert re.search(rf"{COMMAND} Rewind to batch 5 visits {place} done", plain(page)), page
    assert f'href="{visitor.place("")}">visits</a>' in page


def test_what_the_web_ui_did_is_shown_once() -> None:
    own = [
        {
            "at": f"2026-01-05T10:00:0{second}.000Z",
            "target": "/c",
            "outcome": outcome,
            "action": "x",
        }
        for second, outcome in ((5, "done"), (3, "started"))
    ]
    lines = [
        {"at": f"2026-01-05T10:00:0{second}.000Z", "action": "undo", "first_batch": 1_000}
        for second in (1, 4, 6)
    ]
    merged = merge_changes(own, {"/c": lines, "/d": lines[1:2]})
    assert [(line["from"], line["at"][18]) for line in merged] == [
        *((COMMAND, "6"), (WEB, "5"), (COMMAND, "4"), (WEB, "3"), (COMMAND, "1")),
    ]
    assert merged[0]["action"] == "Undo to batch 1000"
    assert merged[2]["target"] == "/d"
