"""Known checkpoints from three places, and snapshots that follow what changes."""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Any

import pytest

from ebbtide.checkpoint import Journal, layout
from ebbtide.config import Settings, load_settings
from ebbtide.connectors.kafka import KafkaConnection
from ebbtide.errors import BrokerError, BusyError, UsageError
from ebbtide.history import Entry, read_history
from ebbtide.history import store as history
from ebbtide.history.store import HISTORY, write_entry, write_rebuilt
from ebbtide.notes import note_path, read_note, remove_note, write_note, write_text
from ebbtide.registry import note_use, read_recent, recent_file
from ebbtide.rewind import fork
from ebbtide.rewind.journal import write_barrier, write_journal
from ebbtide.rewind.lease import RUN, hold_lease
from ebbtide.storage import Folder, open_folder, open_writable
from ebbtide.web import snapshots as snapshots_module
from ebbtide.web.context import WebContext
from ebbtide.web.snapshots import Snapshots
from tests.conftest import Cli
from tests.trees import Shape, build, make
from tests.unit.history.test_history import entry
from tests.unit.web.conftest import Visitor, age, hanging, rewind


def test_checkpoints_are_known_from_three_places(home: Path, tmp_path: Path, inside: Cli) -> None:
    named, used = (make(tmp_path / name / "c", Shape()) for name in ("named", "used"))
    (home / "checkpoints" / "no-checkpoint").mkdir()
    file = tmp_path / "ebbtide.toml"
    file.write_text(f'home = "{home}"\ncheckpoints = ["{named}", "s3://bucket/c/"]')
    settings = load_settings(environ={}, file=file)
    assert inside("inspect", used).returncode == 0
    inside("inspect", tmp_path)  # which is no checkpoint
    note_use("s3://bucket/other")
    found = [(one.location, one.source) for one in Snapshots(settings, ["x"]).entries()]
    assert sorted(found, key=lambda one: one[1]) == [
        (str(named), "ebbtide.toml"),
        ("s3://bucket/c", "ebbtide.toml"),
        (str(home / "checkpoints" / "visits"), "home"),
        (str(Path("x").absolute()), "opened"),
        (str(used), "recent"),
        ("s3://bucket/other", "recent"),
    ]
    assert len({one.key for one in Snapshots(settings).entries()}) == 5


def test_the_checkpoints_of_a_home_at_a_url_are_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    make(tmp_path / ".ebbtide" / "checkpoints" / "of-this-folder", Shape())
    monkeypatch.chdir(tmp_path)
    fsspec.filesystem("memory").pipe_file("/lake/checkpoints/visits/metadata", b'{"id":"7"}')
    settings = load_settings(environ={}, home="memory://lake")
    found = [(one.location, one.source) for one in Snapshots(settings).entries()]
    assert found == [("memory://lake/checkpoints/visits", "home")]


def test_a_file_with_anything_but_strings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "ebbtide.toml"
    for text in ('checkpoints = "c"', "checkpoints = [1]"):
        file.write_text(text)
        with pytest.raises(UsageError, match="checkpoints, a list of strings"):
            load_settings(environ={}, file=file)


def test_fifty_are_remembered_the_last_one_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(55):
        note_use(f"s3://b/{n}")
    note_use("s3://b/20/")
    found = read_recent()
    assert len(found) == 50
    assert found[:2] == ["s3://b/20", "s3://b/54"]
    here = build(tmp_path / "c", 1, 1)
    monkeypatch.chdir(tmp_path)
    note_use("c")
    assert read_recent()[0] == str(here)


def test_remembering_never_fails(tmp_path: Path) -> None:
    place = str(build(tmp_path / "c", 1, 1))
    recent_file().parent.mkdir(parents=True)
    for text in ("{", '{"a": 1}', "[1, null]"):
        recent_file().write_text(text)
        assert read_recent() == []
        note_use(place)
        assert read_recent() == [place]
    recent_file().unlink()
    recent_file().mkdir()
    note_use(place)
    assert read_recent() == []


def test_a_snapshot_is_kept_until_something_changes(home: Path) -> None:
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    place = home / "checkpoints" / "visits"
    first = snapshots.read(key)
    assert snapshots.read(key) is first
    assert (list(first.entries), first.running, first.backups) == (list(range(6)), None, ())
    # a batch ends
    write_entry(open_folder(str(place)), entry(6))
    second = snapshots.read(key)
    assert list(second.entries) == list(range(7))
    assert second.stamp != first.stamp
    # what was written just now may not be all: the next one reads again
    assert snapshots.read(key) is not second
    age(place)
    third = snapshots.read(key)
    assert snapshots.read(key) is third
    assert third.stamp == second.stamp, "nothing has changed"
    # a commit goes
    (place / "commits" / "6").unlink()
    assert not snapshots.read(key).checkpoint.logs.by_id[6].committed


def test_who_runs_it_is_seen_without_a_change_on_the_disk(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    place = home / "checkpoints" / "visits"
    with hold_lease(open_writable(str(place)), RUN):
        age(place)
        running = snapshots.read(key)
        assert running.running == f"process {os.getpid()}"
        assert snapshots.read(key) is running
        # the process dies: nothing on the disk says so
        monkeypatch.setattr("ebbtide.rewind.holders.has_ended", lambda *_: True)
        ended = snapshots.read(key)
    assert ended.running is None
    assert ended.stamp != running.stamp


def test_a_remote_one_is_read_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    offsets = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"t":{"0":3}}'
    memory.pipe_file("/checkpoint/metadata", b'{"id":"7"}')
    memory.pipe_file("/checkpoint/offsets/0", offsets)
    clock = [1000.0]
    monkeypatch.setattr("ebbtide.web.snapshots.time.monotonic", lambda: clock[0])
    snapshots = Snapshots(Settings(home=tmp_path), ["memory://checkpoint"])
    (key,) = (one.key for one in snapshots.entries())
    first = snapshots.read(key)
    memory.pipe_file("/checkpoint/commits/0", b'v1\n{"nextBatchWatermarkMs":0}')
    clock[0] += 4
    assert snapshots.read(key) is first
    clock[0] += 2
    assert snapshots.read(key).checkpoint.logs.by_id[0].committed


def test_only_new_files_of_the_history_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "FOLDED", 4)
    folder = open_folder(str(tmp_path))
    for batch in range(9):
        write_entry(folder, entry(batch))
    parsed: history.Parsed = {}
    read: list[str] = []
    real = Entry.from_json

    def count(line: str) -> Entry:
        read.append(line)
        return real(line)

    monkeypatch.setattr(Entry, "from_json", count)
    assert read_history(folder, parsed) == read_history(folder)
    read.clear()
    assert len(read_history(folder, parsed).entries) == 9
    assert read == []
    write_entry(folder, entry(9))
    assert [one.batch for one in read_history(folder, parsed).entries] == list(range(10))
    assert len(read) == 1
    # two more fold: what a segment covers is read once, as part of it
    write_entry(folder, entry(10))
    write_entry(folder, entry(11))
    assert read_history(folder, parsed) == read_history(folder)
    assert sorted(parsed) == [
        f"{HISTORY}/{name}" for name in sorted(os.listdir(tmp_path / HISTORY))
    ]


def test_a_broker_that_does_not_answer_is_asked_again_later(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def find_problem(connection: KafkaConnection, seconds: float) -> BrokerError | None:
        asked.append((connection, seconds))
        return BrokerError.unreachable("k:9092", seconds) if len(asked) == 1 else None

    monkeypatch.setattr("ebbtide.web.snapshots.find_problem", find_problem)
    clock = [1000.0]
    monkeypatch.setattr("ebbtide.web.snapshots.time.monotonic", lambda: clock[0])
    snapshots = Snapshots(Settings(home=home, bootstrap_servers="k:9092"))
    assert [snapshots.connection() for _ in range(3)] == [None] * 3
    assert str(snapshots.no_broker()).startswith("No Kafka broker answers at k:9092 (waited 1 s).")
    clock[0] += 11
    assert snapshots.connection() == KafkaConnection("k:9092")
    assert asked == [(KafkaConnection("k:9092"), 1.0)] * 2


def test_a_lease_of_another_host_is_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = home / "checkpoints" / "visits" / ".ebbtide"
    with hold_lease(open_writable(str(place.parent)), RUN):
        note = json.loads((place / "leases" / "1.json").read_text())
    note |= {"host": f"not-{socket.gethostname()}", "machine": "another", "token": "another"}
    (place / "leases" / "1.json").write_text(json.dumps(note))
    age(place.parent)
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    running = snapshots.read(key).running
    # that it was seen another second ago is no change
    seen = snapshots.read(key)
    monkeypatch.setattr("ebbtide.rewind.holders.time.time", lambda: note["renewed"] + 9)
    assert snapshots.read(key) is seen
    assert running == f"on host not-{socket.gethostname()}"
    # it does not change for as long as a lease lasts
    monkeypatch.setattr("ebbtide.rewind.holders.LASTS_SECONDS", 0)
    killed = snapshots.read(key)
    assert killed.running is None
    (seen_last,) = killed.activity
    assert seen_last.startswith("Its last run has not ended in order: it was last seen at 20")
    assert seen_last.endswith(f"by the clock of host not-{socket.gethostname()}.")


class Clock:
    """A clock that is set by hand, for time and date alike."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        clock = self

        class Date(datetime):
            @classmethod
            def now(cls, _: tzinfo | None = None) -> Any:
                at = datetime(2026, 1, 5, 10, tzinfo=timezone.utc)
                return at + timedelta(seconds=clock.seconds)

        monkeypatch.setattr(snapshots_module, "datetime", Date)
        monkeypatch.setattr("ebbtide.web.snapshots.time.monotonic", lambda: clock.seconds)


def test_a_checkpoint_without_a_change_keeps_its_stamp(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Spark will have cleaned up when is an estimate that counts from now on."""
    clock = Clock(monkeypatch)
    (home / "checkpoints" / "visits" / "offsets" / "6").touch()  # it may be running
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    first = snapshots.read(key)
    clock.seconds += 60
    second = snapshots.read(key)
    assert second.windows != first.windows, "they were read anew"
    assert second.stamp == first.stamp


def journal(first: int = 4) -> Journal:
    return Journal("rewind", "x", None, first, "exact", f"--to-batch {first}", 7, "5 sink")


def test_whatever_is_shown_is_in_the_stamp(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries() if one.name == "visits")
    place = home / "checkpoints" / "visits"
    folder = open_writable(str(place))
    barrier = place / "offsets" / "7"
    late = ("2020-01-01T00:00:00Z", "2020-01-01T00:00:01Z")

    def finish() -> None:
        barrier.unlink()
        remove_note(folder, layout.JOURNAL)

    changes: dict[str, Any] = {
        "a journal": lambda: write_journal(folder, journal()),
        "a barrier": lambda: write_barrier(open_writable(folder.url), journal()),
        "its end": finish,
        "a line of the audit log": lambda: write_text(folder, layout.AUDIT, '{"action":"undo"}\n'),
        "another line": lambda: write_text(folder, layout.AUDIT, '{"action":"rewind"}\n'),
        "a rebuilt entry": lambda: write_rebuilt(folder, [entry(6)]),
        "rebuilt once more": lambda: write_rebuilt(folder, [entry(6, event_times=late)]),
        "a rewind": lambda: rewind(home, 5),
        "a fork": lambda: fork.fork_checkpoint(str(place), str(home / "checkpoints" / "second"), 2),
        "a strange file": lambda: (place / "offsets" / "notes.txt").touch(),
    }
    stamps = [snapshots.read(key).stamp]
    for what, change in changes.items():
        change()
        clock.seconds += 31
        stamps.append(snapshots.read(key).stamp)
        assert stamps[-1] != stamps[-2], what


def test_a_time_of_a_second_ago_is_not_trusted(home: Path) -> None:
    """Some disks count in seconds: another change may carry the same time."""
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    now = time.time_ns()
    os.utime(home / "checkpoints" / "visits", ns=(now, now - 10**9))
    assert snapshots.read(key) is not snapshots.read(key)


def test_forks_are_looked_for_once_for_all(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "abc":
        make(home / "checkpoints" / name, Shape())
    snapshots = Snapshots(Settings(home=home))
    listed = snapshots.entries()
    read: list[str] = []
    real = Folder.read

    def count(folder: Folder, *parts: str, **limits: int) -> str | None:
        read.append(parts[-1])
        return real(folder, *parts, **limits)

    monkeypatch.setattr(Folder, "read", count)
    for one in listed:
        snapshots.read(one.key)
    # each looks at its own note besides, as it tells how long it keeps batches
    assert 0 < read.count(note_path("fork.json")) <= 2 * len(listed)


def test_a_fork_with_a_strange_number_is_no_mark(visitor: Visitor, home: Path) -> None:
    place = home / "checkpoints" / "visits"
    fork.fork_checkpoint(str(place), str(home / "checkpoints" / "second"), 2)
    folder = open_folder(str(home / "checkpoints" / "second"))
    write_note(folder, "fork.json", (read_note(folder, "fork.json") or {}) | {"first_batch": "two"})
    assert visitor.get(visitor.place("/timeline.json")).json()["marks"] == []


@pytest.fixture
def silent() -> Iterator[str]:
    """A store that accepts and says nothing."""
    pytest.importorskip("aiohttp")
    with hanging() as port:
        yield f"http://127.0.0.1:{port}"


def test_a_store_that_does_not_answer_stops_nobody_else(
    home: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # so long that sixty threads on a busy machine are told earlier
    monkeypatch.setattr(snapshots_module, "_PATIENCE_SECONDS", 4)
    monkeypatch.setattr(snapshots_module, "_WAITING", 2)
    snapshots = Snapshots(Settings(home=home), [f"{silent}/{n}" for n in range(20)])
    keys = {one.name: one.key for one in snapshots.entries()}
    assert snapshots.read(keys["visits"]).name == "visits"
    waited: list[float] = []

    def look(key: str) -> None:
        began = time.monotonic()
        with pytest.raises(BusyError, match="is still being read"):
            snapshots.read(key)
        waited.append(time.monotonic() - began)

    threads = [
        threading.Thread(target=look, args=(keys[str(n)],)) for n in range(20) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(seconds > 3.9 for seconds in waited) <= 2, "the others did not wait in their threads"
    assert snapshots.busy
    began = time.monotonic()
    look(keys["0"])
    assert time.monotonic() - began < 3.9, "it is known to be slow"


def test_while_a_store_does_not_answer_the_last_snapshot_is_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshots = Snapshots(Settings(home=home))
    (key,) = (one.key for one in snapshots.entries())
    first = snapshots.read(key)
    monkeypatch.setattr(snapshots_module, "_PATIENCE_SECONDS", 0.2)
    hangs = threading.Event()

    def slow(location: str) -> Folder:
        hangs.wait(120)
        return open_folder(location)

    monkeypatch.setattr(snapshots_module, "open_folder", slow)
    write_entry(open_folder(str(home / "checkpoints" / "visits")), entry(6))
    assert snapshots.read(key) is first
    hangs.set()
    deadline = time.monotonic() + 60
    while snapshots.read(key) is first and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(snapshots.read(key).entries) == list(range(7))


def test_a_page_of_a_slow_store_asks_again(
    home: Path, silent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshots_module, "_PATIENCE_SECONDS", 0.1)
    context = WebContext(Settings(home=home), opened=(f"{silent}/slow",))
    visitor = Visitor(context).enter()
    whole = visitor.get(visitor.place("/batches/3", "slow"))
    assert (whole.status_code, whole.headers["refresh"]) == (503, "2")
    assert f"{silent}/slow is still being read." in whole.text
    part = visitor.fragment(visitor.place("/facts?x=1", "slow"))
    assert part.status_code == 503
    again = visitor.place("/facts?x=1", "slow")
    assert f'hx-get="{again}" hx-trigger="load delay:2s"' in part.text
    row = visitor.fragment(visitor.place("/facts?row=1", "slow")).text
    assert "being read" in row
    assert 'hx-trigger="every 2s"' in row
    answer = visitor.post("/checkpoints", location=f"{silent}/other")
    assert (answer.status_code, "refresh" in answer.headers) == (503, False)


def test_passwords_are_neither_shown_nor_kept(home: Path) -> None:
    secret = "s3://key:tide-secret@bucket/visits"
    note_use(secret)
    note_use("s3://bucket/plain")
    assert read_recent() == ["s3://bucket/plain"]
    assert recent_file().stat().st_mode & 0o777 == 0o600
    visitor = Visitor(WebContext(Settings(home=home), opened=(secret,))).enter()
    key = next(
        one.key
        for one in visitor.context.snapshots.entries()
        if one.location == "s3://bucket/visits"
    )
    visitor.context.audit.write("rewind", secret, f"refused: {secret} is gone.")
    texts = [visitor.get(path).text for path in ("/", f"/checkpoints/{key}", "/audit")]
    texts.append(visitor.post("/checkpoints", location="gopher://key:tide-secret@x/y").text)
    texts.append((home / "audit.jsonl").read_text())
    assert all("tide-secret" not in text for text in texts)
    assert all("s3://bucket/visits" in text for text in texts[:2])
    assert "key:***@bucket" in texts[2]
    assert (home / "audit.jsonl").stat().st_mode & 0o777 == 0o600
