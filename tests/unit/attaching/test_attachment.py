"""What follows the queries of a session, without Spark."""

from __future__ import annotations

import json
import os
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ebbtide.attaching import attachment
from ebbtide.attaching.attachment import Attachment
from ebbtide.checkpoint import read_logs
from ebbtide.rewind import lease
from ebbtide.storage import open_folder
from tests.unit.attaching.sessions import FakeQuery, FakeSession, progress


@pytest.fixture
def session(tmp_path: Path) -> FakeSession:
    (tmp_path / "metadata").write_text(json.dumps({"id": "7b3c"}))
    return FakeSession([FakeQuery(str(tmp_path))])


@pytest.fixture
def attached(session: FakeSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attachment]:
    monkeypatch.setattr(attachment, "_WATCH_SECONDS", 0.05)
    attached = Attachment(session, lambda _line: None)
    yield attached
    for query in session.queries:
        query.is_active = False
    attached.close()


def wait_until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 8
    while not true():
        assert time.monotonic() < deadline, "it did not come true in time"
        time.sleep(0.01)


def test_metrics_that_are_served_after_the_queries_began(attached: Attachment) -> None:
    attached.follow_all()
    attached.observe("run-0", progress(0))
    (follower,) = attached.followed.values()
    follower.drain(time.monotonic() + 8)
    attached.serve(0, None)
    assert attached._server is not None
    with urllib.request.urlopen(attached._server.url, timeout=10) as answer:
        text = answer.read().decode()
    assert 'ebbtide_batches_total{pipeline="copies"} 1.0' in text
    assert 'ebbtide_running{pipeline="copies"} 1.0' in text


def test_a_session_that_is_stopped(attached: Attachment, session: FakeSession) -> None:
    """No event tells it, and nothing of ours is left."""
    attached.follow_all()
    session.queries[0].is_active, session.stopped = False, True
    wait_until(lambda: attached.closed)
    assert attached.followed == {}


def test_a_query_that_goes_on_keeps_its_lease(attached: Attachment, session: FakeSession) -> None:
    """Otherwise its checkpoint could be rewound while it runs."""
    (query,) = session.queries
    folder = open_folder(query.location)
    attached.follow_all()
    wait_until(lambda: lease.read_lease(folder))
    attached.close()
    assert attached.followed == {}
    time.sleep(0.2)
    refused = lease.check_running(folder, read_logs(folder), assume_stopped=False)
    assert "the query is running" in refused.advice
    query.is_active = False
    wait_until(lambda: lease.read_lease(folder).released)  # type: ignore[union-attr]


def test_a_jvm_that_is_gone(
    attached: Attachment, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    attached.follow_all()

    def fail() -> bool:
        raise ConnectionError

    session.queries[0].is_active = False
    monkeypatch.setattr(session, "is_stopped", fail)
    wait_until(lambda: attached.closed)


def test_a_query_that_has_ended_is_followed_once(
    attached: Attachment, session: FakeSession
) -> None:
    """Of a short one, attach may come too late for its events."""
    (query,) = session.queries
    query.is_active, query.recent = False, [progress(0), progress(1)]
    for _ in range(2):
        attached.follow_one(query, None)
        wait_until(lambda: not attached.followed)
    history = Path(query.location) / ".ebbtide" / "history"
    assert len(list(history.glob("*.jsonl"))) == 2


def test_a_server_that_does_not_answer_does_not_delay_the_end(
    attached: Attachment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client of Spark Connect asks again for minutes."""
    monkeypatch.setattr(attachment, "_LAST_WORDS_SECONDS", 0.2)
    attached.follow_all()
    (follower,) = attached.followed.values()
    silence = threading.Event()
    object.__setattr__(follower.query, "is_active", lambda: silence.wait(20))
    began = time.monotonic()
    attached._end_with_program()
    assert time.monotonic() - began < 10
    silence.set()


def test_a_fork_leaves_the_queries_to_its_parent(
    attached: Attachment, session: FakeSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a copy of the connection to the JVM: two that use it would read each other's answers.

    Its exit code is what went wrong.
    """
    monkeypatch.setitem(attachment._attachments, session.key, attached)
    attached.follow_all()
    (follower,) = attached.followed.values()
    if (child := os.fork()) == 0:
        asked = list[int]()
        object.__setattr__(follower.query, "is_active", lambda: asked.append(1))
        attached._end_with_program()
        os._exit(len(asked) + 2 * len(attachment._attachments))
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert attachment._attachments[session.key] is attached
