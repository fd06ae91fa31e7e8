"""What sessions tell, where a real one cannot be brought to say it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ebbtide.attaching import connect
from ebbtide.attaching.connect import ConnectSession
from ebbtide.attaching.sessions import ClassicSession
from ebbtide.errors import UsageError


def returning(**values: Any) -> Any:
    """A Java object with methods that return these."""
    return SimpleNamespace(**{name: lambda value=value: value for name, value in values.items()})


def test_a_query_of_a_stopped_context_has_ended() -> None:
    """Whatever it says itself: its thread may have died before it could say so."""
    context = returning(isStopped=True)
    process = returning(current=returning(pid=1))
    jvm = SimpleNamespace(java=SimpleNamespace(lang=SimpleNamespace(ProcessHandle=process)))
    java_session = returning(sparkContext=context, hashCode=1)
    session: Any = SimpleNamespace(_jsparkSession=java_session, _jvm=jvm)
    execution = returning(resolvedCheckpointRoot="file:/c")
    query = SimpleNamespace(_jsq=returning(isActive=True, streamingQuery=execution))
    running = ClassicSession(session).describe(query, None, None)
    assert running is not None
    assert not running.is_active()


class Server:
    """A query of Spark Connect whose server answers as told."""

    id, name = "7b3c", "copies"

    def __init__(self, answer: bool | Exception) -> None:
        self._answer = answer

    @property
    def isActive(self) -> bool:  # noqa: N802 - Spark's name
        if isinstance(self._answer, Exception):
            raise self._answer
        return self._answer


@pytest.mark.parametrize(
    ("answer", "is_active"),
    [
        (True, True),
        (False, False),
        (RuntimeError("[CONNECT_INVALID_PLAN.STREAMING_QUERY_NOT_FOUND] It is not found"), False),
        (RuntimeError("[INVALID_HANDLE.SESSION_CHANGED] The server has restarted"), False),
        (RuntimeError("<_MultiThreadedRendezvous: UNAVAILABLE>\nsession not found"), True),
    ],
)
def test_a_server_that_does_not_answer_may_run_the_query(
    answer: bool | Exception, *, is_active: bool
) -> None:
    session = ConnectSession(SimpleNamespace(session_id="s", is_stopped=False))
    running = session.describe(Server(answer), "copies", "/c")
    assert running is not None
    assert running.is_active() is is_active


def test_a_path_that_only_the_server_knows() -> None:
    session = ConnectSession(SimpleNamespace(session_id="s", is_stopped=False))
    local, remote = (session.describe(Server(True), None, url) for url in ("/c", "s3a://lake/c"))
    assert local is not None
    assert remote is not None
    assert local.qualify("/out") == "/out"
    assert remote.qualify("s3a://lake/out") == "s3a://lake/out"
    for running, path in ((remote, "/out"), (local, "out")):
        with pytest.raises(UsageError, match=f"does not tell in which store {path} lies"):
            running.qualify(path)


def test_spark_connect_before_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "pyspark_version", "3.5.9")
    with pytest.raises(UsageError, match=r"3\.5\.9 runs listeners in its server"):
        ConnectSession(SimpleNamespace(session_id="s"))
