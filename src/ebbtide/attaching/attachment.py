"""Attach to a Spark session or to a query: follow what they run."""

from __future__ import annotations

import atexit
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from ebbtide.attaching.connect import ConnectSession, is_connect
from ebbtide.attaching.follower import Follower
from ebbtide.attaching.sessions import ClassicSession, FollowedSession
from ebbtide.errors import EbbtideError, UsageError, first_line
from ebbtide.runtime import metrics_endpoint

_LAST_WORDS_SECONDS = 5
"""How long the end of a program may wait until all is written."""
_WATCH_SECONDS = 5
"""How often runs are looked at whose end no event has told."""
_RUN_ID = re.compile(r'"runId"\s*:\s*"([0-9a-f-]{36})"')
_log = logging.getLogger("ebbtide.attach")
_attachments: dict[object, Attachment] = {}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_attachments.clear)  # their threads are not there


def attach(
    target: Any,
    *,
    checkpoint: str | None = None,
    metrics_port: int | None = None,
    metrics_host: str | None = None,
    on_message: Callable[[str], None] = _log.warning,
) -> Attachment:
    """Follow every query of a session, or one query, from now on; see `ebbtide.attach`."""
    if not (hasattr(target, "streams") or hasattr(target, "runId")):
        raise UsageError(
            f"attach needs a SparkSession or a StreamingQuery, not {type(target).__name__}.",
            "Type: ebbtide.attach(spark)",
        )
    is_session = hasattr(target, "streams")
    session = _open_session(target, is_session=is_session)
    attachment = _attachments.get(session.key)
    if attachment is not None and attachment.closed:
        attachment = None
    if not is_session and checkpoint is None and not (attachment and attachment.knows(target)):
        session.describe(target, target.name, None)  # raises if it cannot tell the checkpoint
    if attachment is None:
        attachment = _attachments[session.key] = Attachment(session, on_message)
    if metrics_port is not None:
        attachment.serve(metrics_port, metrics_host)
    if is_session:
        attachment.follow_all()
    else:
        attachment.follow_one(target, checkpoint)
    return attachment


def detach(session: Any) -> None:
    """Stop following the queries of a session, if they are followed."""
    attachment = _attachments.pop(_open_session(session, is_session=True).key, None)
    if attachment is not None:
        attachment.close()


def _open_session(target: Any, *, is_session: bool) -> FollowedSession:
    if is_connect(target):
        return ConnectSession(target if is_session else target._session)
    return ClassicSession(target) if is_session else ClassicSession.of_query(target)


class Attachment:
    """What follows the queries of a session. `close` ends that; the queries go on."""

    def __init__(self, session: FollowedSession, say: Callable[[str], None]) -> None:
        self.closed, self._process = False, os.getpid()
        self.followed: dict[str, Follower] = {}
        """By the id of the run."""
        self._session, self._lock = session, threading.Lock()
        self._say = partial(_say_safely, say)
        self._all = False
        self._checkpoints: dict[str, str | None] = {}
        """Of the queries that are followed if not all are: by id, what Spark may not tell."""
        self._server: metrics_endpoint.MetricsServer | None = None
        self._listener = _Listener(self)
        with reported(self._say, "The settings of Spark cannot be read"):
            session.prepare()
        with reported(self._say, "No query is followed"):
            session.add_listener(self._listener)
            session.watch_starts(self.note_start)
            session.watch_stop(self._end_with_program)
        # before the threads of a store's client are stopped, which it needs to write
        register = getattr(threading, "_register_atexit", atexit.register)
        with suppress(RuntimeError):  # the program is ending already
            register(self._end_with_program)
        threading.Thread(target=self._watch, name="ebbtide-watch", daemon=True).start()

    def serve(self, port: int, host: str | None) -> None:
        """Serve the metrics of all queries to Prometheus; a port that is taken is only reported."""
        with reported(self._say, "There are no metrics"):
            if self._server is None:
                self._server = metrics_endpoint.MetricsServer(host, port)
                _log.info("Metrics for Prometheus: %s", self._server.url)
            for follower in list(self.followed.values()):
                self._server.add(follower.query.location, follower.metrics)

    def follow_all(self) -> None:
        """Follow every query of the session, also those that run already."""
        self._all = True
        for query in self._session.active():
            self.begin(str(query.id), str(query.runId), query.name)

    def follow_one(self, query: Any, checkpoint: str | None) -> None:
        """Follow a query, which may have ended meanwhile, and its restarts in this session."""
        self._checkpoints[str(query.id)] = checkpoint or self._checkpoints.get(str(query.id))
        self.begin(str(query.id), str(query.runId), query.name, query)

    def knows(self, query: Any) -> bool:
        """Whether a query was followed before."""
        return str(query.id) in self._checkpoints

    def note_start(self, query: Any, location: str | None) -> None:
        """Follow a query that no event tells enough about."""
        if self._all or str(query.id) in self._checkpoints:
            self.follow_one(query, location)

    def begin(self, query_id: str, run_id: str, name: str | None, query: Any = None) -> None:
        """Follow a run of a query."""
        if self.closed or not (self._all or query_id in self._checkpoints):
            return
        with reported(self._say, f"Query {name or query_id} is not followed"), self._lock:
            query = query or self._session.find(query_id)
            if run_id in self.followed or query is None:
                return
            running = self._session.describe(query, name, self._checkpoints.get(query_id))
            if running is None:
                return
            metrics = metrics_endpoint.Metrics(name or query_id, self._say)
            follower = Follower(running, metrics, self._say, partial(self._forget, run_id))
            self.followed[run_id] = follower
            if self._server is not None:
                self._server.add(running.location, metrics)
            follower.start()

    def _forget(self, run_id: str) -> None:
        """All of a run that has ended is written."""
        self.followed.pop(run_id, None)

    def _watch(self) -> None:
        """End what has ended without an event: Spark drops some when it is busy or is stopped."""
        while not self.closed:
            time.sleep(_WATCH_SECONDS)
            for follower in list(self.followed.values()):
                if not _asks_yes(follower.query.is_active):
                    follower.end()
            if _asks_yes(lambda: not self._session.is_stopped()):
                with suppress(Exception):
                    self._session.keep_listener(self._listener)
            elif not self.followed:
                self.close()

    def observe(self, run_id: str, progress: str) -> None:
        """Pass on what a trigger did, as JSON."""
        if (follower := self.followed.get(run_id)) is not None:
            follower.observe(progress)

    def end(self, run_id: str) -> None:
        """Take note that a run has ended."""
        if (follower := self.followed.get(run_id)) is not None:
            follower.end()

    def close(self) -> None:
        """Stop following; the queries go on, and keep their leases until they end."""
        self.closed = True
        with reported(self._say, "Spark's listener cannot be removed"):
            self._session.remove_listener(self._listener)
        followers, deadline = list(self.followed.values()), time.monotonic() + _LAST_WORDS_SECONDS
        for follower in followers:
            if _asks_by(deadline, follower.query.is_active):
                follower.leave()
            else:
                follower.end()
        for follower in followers:
            follower.join(deadline)
        self.followed.clear()
        if self._server is not None:
            self._server.close()
            self._server = None

    def _end_with_program(self) -> None:
        """Let what has ended be written. What still runs dies with the program, and its lease."""
        if os.getpid() != self._process:  # a fork, which must not use the connections of the other
            return
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        self._session.expect_end()
        for follower in list(self.followed.values()):
            if _asks_by(deadline, follower.query.is_active):
                follower.drain(deadline)
            else:
                time.sleep(0.1)  # for its last event
                follower.end()
                follower.join(deadline)


def _asks_yes(question: Callable[[], bool]) -> bool:
    """The answer of a JVM, which may be gone."""
    try:
        return question()
    except Exception:
        return False


def _asks_by(deadline: float, question: Callable[[], bool]) -> bool:
    """The answer by a time of the monotonic clock: a server that is gone is asked for minutes."""
    answers = list[bool]()
    asking = threading.Thread(target=lambda: answers.append(_asks_yes(question)), daemon=True)
    try:
        asking.start()
    except RuntimeError:  # Python 3.12 starts no thread while it ends
        return _asks_yes(question)
    asking.join(max(0.0, deadline - time.monotonic()))
    return answers[0] if answers else True


def _say_safely(say: Callable[[str], None], line: str) -> None:
    with suppress(Exception):  # such as a pipe that nobody reads
        say(line)


@contextmanager
def reported(say: Callable[[str], None], problem: str) -> Iterator[None]:
    """Report an error in one line instead of raising it."""
    try:
        yield
    except Exception as error:
        cause = str(error) if isinstance(error, EbbtideError) else first_line(error)
        say(f"Warning: {problem}: {cause}")


class _Listener(StreamingQueryListener):
    """What Spark calls, in a thread of its own and while a query starts: it must not wait."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment

    @property
    def _jlistener(self) -> Any:
        """What the JVM calls: pyspark's own would ask it for every field of an event."""
        if not hasattr(self, "_bridge"):
            from pyspark import SparkContext

            self._bridge = SparkContext._jvm.PythonStreamingQueryListenerWrapper(_Bridge(self))  # type: ignore[union-attr]
        return self._bridge

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        pass  # with Spark Connect, the session itself tells of it

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        with self.reported():
            progress = event.progress.json
            self._attachment.observe(str(json.loads(progress)["runId"]), progress)

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self.reported():
            self._attachment.end(str(event.runId))

    def reported(self) -> Any:
        """Let no error of ours reach Spark."""
        return reported(self._attachment._say, "An event of Spark was not understood")


class _Bridge(JStreamingQueryListener):
    """Takes the JVM's events with as few calls back as possible."""

    def __init__(self, listener: _Listener) -> None:
        super().__init__(listener)
        self._listener, self._attachment = listener, listener._attachment

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        with self._listener.reported():
            ids = event.id().toString(), event.runId().toString()
            self._attachment.begin(*ids, event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        with self._listener.reported():
            text = event.json()  # one call: of each object that we held, Spark would hear again
            self._attachment.observe(_RUN_ID.search(text)[1], text)  # type: ignore[index]

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._listener.reported():
            self._attachment.end(event.runId().toString())
