"""What the pages say: the list, the timeline, a batch, its records, and errors."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from ebbtide.checkpoint import Timeline
from ebbtide.config import Settings
from ebbtide.connectors import kafka
from ebbtide.connectors.kafka import KafkaConnection, Record, clients, consumer
from ebbtide.connectors.progress import LateRecords
from ebbtide.history import Output
from ebbtide.history.store import write_entry
from ebbtide.rewind import fork
from ebbtide.storage import open_folder
from ebbtide.web.batches import BytesPreview
from ebbtide.web.context import WebContext
from tests.trees import Shape, make
from tests.unit.history.test_history import entry
from tests.unit.web.conftest import Visitor, rewind

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"


def plain(text: str) -> str:
    """A page's words without its marks."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text)).replace(" .", ".").replace(" ,", ",")


def test_the_list_has_every_name_at_once(visitor: Visitor, home: Path) -> None:
    make(home / "checkpoints" / "broken", Shape())
    (home / "checkpoints" / "broken" / "offsets" / "3").write_text("v9")
    text = visitor.get("/").text
    for name in ("visits", "broken"):
        assert f'hx-get="{visitor.place("/facts?row=1", name)}"' in text


def test_one_broken_checkpoint_is_a_line_like_the_others(visitor: Visitor, home: Path) -> None:
    make(home / "checkpoints" / "broken", Shape())
    (home / "checkpoints" / "broken" / "offsets" / "3").write_text("v9")
    said = plain(visitor.fragment(visitor.place("/facts?row=1", "broken")).text)
    assert "broken" in said
    assert "offsets/3 is not a log file" in said
    row = visitor.fragment(visitor.place("/facts?row=1")).text
    assert re.search(r"stopped 6, \d+ days ago, 3 rows", plain(row)), plain(row)
    assert 'title="1970-01-01 00:00:01 UTC"' in row
    answer = visitor.get(visitor.place("/timeline.json", "broken"))
    assert answer.status_code == 409
    assert "offsets/3 is not a log file" in answer.text


def test_health_in_words(visitor: Visitor, home: Path) -> None:
    (home / "checkpoints" / "visits" / "offsets" / "notes.txt").touch()
    said = plain(visitor.fragment(visitor.place("/facts")).text)
    assert "1 unknown file" in said
    assert "Can run again from batch 0" in said
    assert "Status stopped" in said


def test_the_timeline_in_columns(visitor: Visitor) -> None:
    answer = visitor.get(visitor.place("/timeline.json"))
    found = answer.json()
    batches = found["batches"]
    assert {len(column) for column in batches.values()} == {7}
    assert batches["id"] == list(range(7))
    assert batches["at"][:1] == [1767607200000]
    assert batches["at"][6] == 1006, "planned, as it was not recorded"
    assert batches["rows"] == [3] * 7
    assert batches["broken"] == [1] * 6 + [None]
    assert batches["duration"][0] == 1500
    assert batches["earliest"][0] == 1756969200000
    assert batches["latest"][0] == 1756969259999
    assert batches["state_rows"] == [2] * 6 + [None]
    assert batches["committed"] == batches["replayable"] == [1] * 7
    assert [kept["keeper"] for kept in found["retained"]] == ["checkpoint"]
    assert found["retained"][0]["from_batch"] == 0
    assert (found["name"], found["running"], found["interrupted"]) == ("visits", None, None)


def test_what_did_not_change_is_not_sent_again(visitor: Visitor, home: Path) -> None:
    place = visitor.place("/timeline.json")
    tag = visitor.get(place).headers["etag"]
    again = visitor.get(place, **{"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    write_entry(open_folder(str(home / "checkpoints" / "visits")), entry(6))
    answer = visitor.get(place, **{"If-None-Match": tag})
    assert answer.status_code == 200
    assert answer.json()["batches"]["broken"] == [1] * 7


def test_rewinds_and_forks_are_marked(visitor: Visitor, home: Path) -> None:
    place = rewind(home, 5)
    fork.fork_checkpoint(str(place), str(home / "checkpoints" / "second"), 2)
    marks = visitor.get(visitor.place("/timeline.json")).json()["marks"]
    assert [(mark["kind"], mark["batch"]) for mark in marks] == [("rewind", 5), ("fork", 2)]
    assert re.fullmatch(r"Rewind to batch 5 by \S+, 20\d\d-.*", marks[0]["text"])
    assert "second at batch 2" in marks[1]["text"]
    (mark,) = visitor.get(visitor.place("/timeline.json", "second")).json()["marks"]
    assert (mark["kind"], mark["batch"]) == ("fork", 2)
    assert mark["text"].startswith(f"Forked from {place} at batch 2")


def test_an_empty_checkpoint_has_a_timeline(visitor: Visitor, home: Path) -> None:
    place = home / "checkpoints" / "new"
    place.mkdir()
    (place / "metadata").write_text('{"id":"7b3c"}')
    found = visitor.get(visitor.place("/timeline.json", "new")).json()
    assert set(map(tuple, found["batches"].values())) == {()}
    assert found["retained"] == []
    assert "none yet" in visitor.fragment(visitor.place("/facts", "new")).text


def test_a_batch_tells_what_it_did(visitor: Visitor) -> None:
    answer = visitor.fragment(visitor.place("/batches/3"))
    assert '<section id="batch-view" data-batch="3"' in answer.text
    assert "<html" not in answer.text
    said = plain(answer.text)
    for words in (
        "It can run again;",
        "Started 2026-01-05 10:03:00",
        "Rows 3",
        "Broken 1",
        "Took 1.5 s",
        "Watermark 2025-09-04 06:50:00",
        "Earliest event 2025-09-04 07:03:00",
        "Output rows 2",
        "Output digest 0123456789abcdef",
        "spark 4.2.0",
        "Part of the timeline origin: as it first ran",
        "visits 0 2 3 1 visits 1 4 6 2",
        "total triggerExecution 1.5 s",
        "stateStoreSave 2",
    ):
        assert words in said, words
    links = re.findall(r'href="([^"]*)"', answer.text)
    assert visitor.place("/rewind?to_batch=3") in links
    assert (
        visitor.place(
            "/reprocess?start=2025-09-04T07%3A03%3A00.000Z&amp;end=2025-09-04T07%3A04%3A00.000Z"
        )
        in links
    )
    whole = visitor.get(visitor.place("/batches/3")).text
    assert "<html" in whole
    assert 'rel="next"' in whole


def test_a_batch_that_was_not_recorded(visitor: Visitor) -> None:
    said = plain(visitor.fragment(visitor.place("/batches/6")).text)
    assert "Planned 1970-01-01 00:00:01" in said
    assert "was not recorded" in said


def test_a_batch_of_a_query_with_state_leads_to_it(visitor: Visitor, home: Path) -> None:
    make(home / "checkpoints" / "counted", Shape(layout="hdfs"))
    links = visitor.fragment(visitor.place("/batches/3", "counted")).text
    assert visitor.place("/state?batch=3", "counted") in links
    assert visitor.place("/state/diff?from=2&amp;to=3", "counted") in links


def test_a_batch_of_which_only_the_history_knows(tmp_path: Path) -> None:
    place = make(tmp_path / "h" / "checkpoints" / "visits", Shape(layout="hdfs", first=5))
    for batch in range(8):
        write_entry(open_folder(str(place)), entry(batch))
    visitor = Visitor(WebContext(Settings(home=tmp_path / "h"))).enter()
    said = plain(visitor.fragment(visitor.place("/batches/3")).text)
    assert "It cannot run again: Spark has cleaned up what it starts from." in said
    assert "visits 0 2 3 1" in said
    said = plain(visitor.fragment(visitor.place("/batches/5")).text)
    assert "It cannot run again: offsets/4 is gone." in said
    found = visitor.get(visitor.place("/timeline.json")).json()
    assert found["batches"]["replayable"] == [0] * 6 + [1] * 6
    assert found["retained"][0]["from_batch"] == 6


def test_other_runs_of_a_batch_are_compared(visitor: Visitor, home: Path) -> None:
    place = rewind(home, 4)
    folder = open_folder(str(place))
    name = Timeline.read(folder).name
    again = entry(4, name, rows=5, output=Output(9, "f" * 16), code="b", versions={"spark": "4.1"})
    write_entry(folder, again)
    said = plain(visitor.fragment(visitor.place("/batches/4")).text)
    assert f"Part of the timeline {name}: from batch 4 on, which kept its records" in said
    assert "origin 3 rows 3 → 5; output rows 2 → 9; other output; other versions" in said
    assert "Other runs" not in visitor.fragment(visitor.place("/batches/3")).text


def test_late_records_of_a_batch_can_be_reprocessed(visitor: Visitor, home: Path) -> None:
    times = ("2025-09-04T06:50:00.000Z", "2025-09-04T07:00:00.000Z")
    late = entry(3, late=LateRecords(99_900, times=times))
    assert "late" not in plain(visitor.fragment(visitor.place("/batches/3")).text).split("State")[0]
    write_entry(open_folder(str(home / "checkpoints" / "visits")), late)
    page = visitor.fragment(visitor.place("/batches/3")).text
    assert "Late 99,900" in plain(page)
    assert f"/reprocess?start={quote(times[0])}&amp;end={quote(times[1])}" in page
    assert "Late records 99,900" in plain(visitor.get(visitor.place("/metrics")).text)


def test_a_batch_that_is_not_known(visitor: Visitor) -> None:
    answer = visitor.get(visitor.place("/batches/99"))
    assert answer.status_code == 404
    assert "Batch 99 of visits is unknown." in plain(answer.text)
    for name in ("x", "9" * 5_000, "9" * 5_000 + "/records", "-1", "٣"):
        assert visitor.get(visitor.place(f"/batches/{name}")).status_code == 404


def test_an_unknown_key_is_not_found(visitor: Visitor) -> None:
    for path in ("", "/facts", "/timeline.json", "/batches/3", "/batches/3/records"):
        answer = visitor.get(f"/checkpoints/nothing-123456{path}")
        assert answer.status_code == 404
        assert "This checkpoint is not in the list. Open it by its path" in plain(answer.text)
    assert visitor.get("/nothing").status_code == 404


def test_opening_another_one(visitor: Visitor, home: Path, tmp_path: Path) -> None:
    other = make(tmp_path / "elsewhere" / "visits", Shape())
    answer = visitor.post("/checkpoints", location=f" {other}/ ")
    assert answer.status_code == 303
    assert visitor.get(answer.headers["location"]).status_code == 200
    htmx = visitor.post("/checkpoints", {"HX-Request": "true"}, location=str(other))
    assert htmx.headers["hx-redirect"] == answer.headers["location"]
    assert [one.location for one in visitor.context.snapshots.entries()] == [
        str(other),
        str(home / "checkpoints" / "visits"),
    ]
    last = json.loads((home / "audit.jsonl").read_text().splitlines()[-1])
    assert (last["action"], last["target"]) == ("open", str(other))
    assert str(other) in visitor.get("/audit").text


@pytest.mark.parametrize(
    ("location", "status", "says"),
    [
        ("", 422, "No checkpoint is named. Enter its path"),
        ("no-such-place", 409, "is not a checkpoint: there is no such folder. Name the folder"),
        ("gopher://x/y", 422, "cannot be opened"),
        ("~nobody-here/x", 409, "~nobody-here/x is not a checkpoint"),
    ],
)
def test_errors_of_the_core_are_shown_with_their_next_step(
    visitor: Visitor, home: Path, location: str, status: int, says: str
) -> None:
    answer = visitor.post("/checkpoints", location=location)
    assert answer.status_code == status
    assert says in plain(answer.text).replace("&#39;", "'")
    assert "<html" in answer.text
    fragment = visitor.post("/checkpoints", {"HX-Request": "true"}, location=location)
    assert fragment.status_code == status
    assert "<html" not in fragment.text
    last = json.loads((home / "audit.jsonl").read_text().splitlines()[-1])
    assert last["outcome"].startswith("refused: ")


def test_hostile_names_are_only_text(tmp_path: Path) -> None:
    place = make(tmp_path / "checkpoints" / IMAGE, Shape())
    for n in range(7):
        file = place / "offsets" / str(n)
        file.write_text(file.read_text().replace("visits", SCRIPT))
    for n in range(4):
        sources = ((place / "offsets" / str(n)).read_text().splitlines()[2],)
        state = ({"operator": IMAGE, "rows": 1},)
        run = entry(n, sources=sources, state=state, output=Output(1, SCRIPT))
        run = replace(run, versions={IMAGE: SCRIPT}, code=SCRIPT, durations={SCRIPT: 3})
        write_entry(open_folder(str(place)), run)
    visitor = Visitor(WebContext(Settings(home=tmp_path))).enter()
    (known,) = visitor.context.snapshots.entries()
    assert re.fullmatch("[a-z0-9-]+", known.key)
    for path in ("", "/facts", "/facts?row=1", "/batches/3", "/batches/9", "/batches/3/records"):
        text = visitor.get(f"/checkpoints/{known.key}{path}").text
        assert "<img src=x" not in text
        assert "<script>" not in text
    assert "&lt;script&gt;" in visitor.get(f"/checkpoints/{known.key}/batches/3").text
    assert "<img src=x" not in visitor.get("/").text
    found = visitor.get(f"/checkpoints/{known.key}/timeline.json")
    assert found.headers["content-type"] == "application/json"


def test_records_are_shown_harmlessly(visitor: Visitor, monkeypatch: pytest.MonkeyPatch) -> None:
    large = ("ä" * 600_000).encode()
    records = [
        Record("visits", 0, 2, 1_756_969_200_000, SCRIPT.encode(), large, ((SCRIPT, b"\xff\0"),)),
        Record("visits", 1, 4, 1_756_969_200_000, None, None),
        Record("visits", 1, 5, 1, b"\x1b[31m", "a\u202eb".encode(), ((IMAGE, None),) * 30),
    ]
    asked = []

    def take(connection: KafkaConnection, topic: str, ranges: object, count: int) -> list[Record]:
        asked.append((connection, topic, ranges, count))
        return records

    visitor.context.snapshots.read(visitor.key())  # before there is a broker to ask
    monkeypatch.setattr(kafka, "take", take)
    monkeypatch.setattr(visitor.context.snapshots, "connection", lambda **_: BROKER)
    answer = visitor.fragment(visitor.place("/batches/3/records"))
    assert asked == [(BROKER, "visits", {0: (2, 3), 1: (4, 6)}, 20)]
    assert len(answer.content) < 40_000
    said = plain(answer.text)
    assert "<script>" not in answer.text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in answer.text
    assert "first part of 1.1 MiB" in said
    assert "not UTF-8; 2 B" in said
    assert "\\xff\\x00" in said
    assert "and 10 more" in said
    assert re.search("Position Time Key Value visits 0:2 2025-09-04 07:00:00 ", said), said
    assert len(re.findall("<tr>", answer.text)) == 1 + len(records), "one row for each record"
    assert "2025-09-04 07:00:00" in said
    assert "␛[31m" in said
    assert "\u202e" not in answer.text


def test_a_broker_that_does_not_answer_is_one_line(home: Path) -> None:
    visitor = Visitor(WebContext(Settings(home=home))).enter()
    said = plain(visitor.fragment(visitor.place("/batches/3/records")).text)
    assert said.strip() == "The embedded broker is not running. Type: ebbtide broker start"


@pytest.mark.parametrize(
    ("value", "text", "cut", "binary"),
    [
        (b"plain", "plain", False, False),
        (b"", "", False, False),
        (("ä" * 2_000).encode(), "ä" * 2_000, False, False),
        (("ä" * 2_001).encode(), "ä" * 2_000, True, False),
        (("\U0001f600" * 9_000).encode(), "\U0001f600" * 2_000, True, False),
        (b"a" * 9_000 + b"\xff", "a" * 2_000, True, True),
        (b"\xff\xfe", "\\xff\\xfe", True, True),
    ],
)
def test_bytes_as_a_person_reads_them(value: bytes, text: str, cut: bool, binary: bool) -> None:
    shown = BytesPreview.of(value)
    assert shown is not None
    assert (shown.text, shown.cut, shown.binary, shown.size) == (text, cut, binary, len(value))


BROKER = KafkaConnection("k:9092")


BAD: dict[str, object] = {
    "rows": "x",
    "broken": None,
    "lag": 1.5,
    "started": 5,
    "watermark": 7,
    "durations": {"triggerExecution": float("inf")},
    "state": [{"operator": "a", "rows": "q"}],
    "sources": ["no JSON"],
    "event_times": ["2025-09-04T07:00:00Z"],
    "output": {"rows": True, "digest": "a"},
    "batch": 10**30,
}


@pytest.mark.parametrize(("name", "value"), [*BAD.items(), ("rows", float("nan"))])
def test_a_damaged_entry_breaks_no_page(
    visitor: Visitor, home: Path, name: str, value: object
) -> None:
    file = home / "checkpoints" / "visits" / ".ebbtide" / "history" / "000000000003.jsonl"
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}) + "\n")
    for path in ("/facts", "/metrics", "/batches/3", "/batches/4", "/timeline.json"):
        assert visitor.get(visitor.place(path)).status_code == 200, path
    batches = visitor.get(visitor.place("/timeline.json")).json()["batches"]
    assert batches["broken"] == [1, 1, 1, None, 1, 1, None], "as if it had not been recorded"
    snapshot = visitor.context.snapshots.read(visitor.key())
    assert snapshot.history.strange == (".ebbtide/history/000000000003.jsonl",)


class Topic:
    """A topic of many partitions with ten records each, and how often it was asked."""

    def __init__(self) -> None:
        self.asked = 0

    def get_watermark_offsets(self, *_: object, **__: object) -> tuple[int, int]:
        self.asked += 1
        return 0, 10

    def assign(self, *_: object) -> None: ...

    def close(self) -> None: ...


def test_a_sample_asks_no_more_partitions_than_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    topic = Topic()
    monkeypatch.setattr(clients, "Consumer", lambda _settings: topic)
    monkeypatch.setattr(consumer, "_take", lambda *_: [Record("t", 0, 0, 0, None, None)] * 10)
    ranges = dict.fromkeys(range(300), (0, 10))
    assert len(kafka.take(BROKER, "t", ranges, 20)) == 20
    assert topic.asked == 2
    monkeypatch.setattr(consumer, "ANSWER_SECONDS", 0)
    assert kafka.take(BROKER, "t", ranges, 20) == []
    assert topic.asked == 2
