"""Attach to a Spark session or to a query: follow what they run."""

from __future__ import annotations

import atexit
import json
import logging
import re
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from pyspark import SparkContext
from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from ebbtide.attaching.follower import Follower
from ebbtide.errors import EbbtideError, UsageError, first_line
from ebbtide.hadoop import use_spark_settings
from ebbtide.runtime import metrics_endpoint

_LAST_WORDS_SECONDS = 5
"""How long the end of a program may wait until all is written."""
_TEMPORARY = re.compile(r"/temporary-[0-9a-f-]{36}$")
"""The checkpoint of a query that names none; Spark removes it."""
_log = logging.getLogger("ebbtide.attach")
_attachments: dict[object, Attachment] = {}


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
    if ".connect." in type(target).__module__:
        if is_session or checkpoint is None:
            raise UsageError(
                "Spark Connect does not tell where a query keeps its checkpoint.",
                'Attach to the query: ebbtide.attach(query, checkpoint="s3a://…")',
            )
        session, key = target._session, target._session.session_id
    elif is_session:
        session, key = target, target._jsparkSession.hashCode()
    else:
        jvm_session = target._jsq.sparkSession()
        context = SparkSession.builder.getOrCreate().sparkContext
        session, key = SparkSession(context, jvm_session), jvm_session.hashCode()
    attachment = _attachments.get(key)
    if attachment is None or attachment.closed:
        attachment = _attachments[key] = Attachment(session, on_message)
    if metrics_port is not None:
        attachment.serve(metrics_port, metrics_host)
    if is_session:
        attachment.follow_all()
    else:
        attachment.follow_one(target, checkpoint)
    return attachment


class Attachment:
    """What follows the queries of a session. `close` ends it; the queries go on."""

    def __init__(self, session: Any, say: Callable[[str], None]) -> None:
        self.closed = False
        self.followed: dict[str, Follower] = {}
        """By the id of the run."""
        self._session, self._say, self._lock = session, say, threading.Lock()
        self._all = False
        self._checkpoints: dict[str, str | None] = {}
        """Of the queries that are followed if not all are: by id, where Spark does not tell."""
        self._server: metrics_endpoint.MetricsServer | None = None
        self._listener = _Listener(self)
        with _reported(say, "The settings of Spark cannot be read"):
            conf = session.sparkContext.getConf().getAll()
            use_spark_settings(dict(conf))
        session.streams.addListener(self._listener)
        atexit.register(self._end_with_program)

    def serve(self, port: int, host: str | None) -> None:
        """Serve the metrics of all queries to Prometheus; a port that is taken is only reported."""
        with _reported(self._say, "There are no metrics"):
            if self._server is None:
                self._server = metrics_endpoint.MetricsServer(host, port)
                _log.info("Metrics for Prometheus: %s", self._server.url)

    def follow_all(self) -> None:
        """Follow every query of the session, also those that run already."""
        self._all = True
        for query in self._session.streams.active:
            self.begin(str(query.id), str(query.runId), query.name)

    def follow_one(self, query: Any, checkpoint: str | None) -> None:
        """Follow a query that runs already, and its restarts in this session."""
        self._checkpoints[str(query.id)] = checkpoint
        self.begin(str(query.id), str(query.runId), query.name)

    def begin(self, query_id: str, run_id: str, name: str | None) -> None:
        """Follow a run of a query from its start."""
        if self.closed or not (self._all or query_id in self._checkpoints):
            return
        with _reported(self._say, f"Query {name or query_id} is not followed"), self._lock:
            if run_id in self.followed:
                return
            location = self._checkpoints.get(query_id) or self._find_checkpoint(query_id)
            if location is None or _TEMPORARY.search(location):
                return
            metrics = metrics_endpoint.Metrics(name or query_id, self._say)
            follower = Follower(location, name, metrics, self._say, partial(self._forget, run_id))
            self.followed[run_id] = follower
            if self._server is not None:
                self._server.add(query_id, metrics)
            follower.start(self._find_processes())

    def _forget(self, run_id: str) -> None:
        """All of a run that has ended is written."""
        self.followed.pop(run_id, None)

    def _find_checkpoint(self, query_id: str) -> str | None:
        """Where a running query keeps its checkpoint."""
        query = self._session.streams.get(query_id)
        return str(query._jsq.streamingQuery().resolvedCheckpointRoot()) if query else None

    def _find_processes(self) -> tuple[int, ...]:
        """The process of the JVM, if it is on this machine: Spark Connect's is not."""
        jvm = getattr(self._session, "_jvm", None)
        return (int(jvm.java.lang.ProcessHandle.current().pid()),) if jvm is not None else ()

    def observe(self, progress: dict[str, Any]) -> None:
        """Pass on what a trigger did."""
        if (follower := self.followed.get(progress["runId"])) is not None:
            follower.observe(progress)

    def end(self, run_id: str) -> None:
        """Take note that a run has ended."""
        if (follower := self.followed.get(run_id)) is not None:
            follower.end()

    def close(self) -> None:
        """Stop following; the queries go on without."""
        self.closed = True
        atexit.unregister(self._end_with_program)
        with _reported(self._say, "Spark's listener cannot be removed"):
            self._session.streams.removeListener(self._listener)
        followers = list(self.followed.values())
        for follower in followers:
            follower.end()
        for follower in followers:
            follower.join(_LAST_WORDS_SECONDS)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _end_with_program(self) -> None:
        """Let what has ended be written. What still runs dies with the program, and its lease."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        try:
            active = {str(query.runId) for query in self._session.streams.active}
        except Exception:  # Spark has been stopped: all events have come
            active = set()
            for follower in list(self.followed.values()):
                follower.end()
        for run_id, follower in list(self.followed.items()):
            wait = follower.drain if run_id in active else follower.join
            wait(max(0.0, deadline - time.monotonic()))


class _reported:  # noqa: N801 - reads as a statement
    """Report an error in one line instead of raising it."""

    def __init__(self, say: Callable[[str], None], problem: str) -> None:
        self._say, self._problem = say, problem

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception):
            cause = str(error) if isinstance(error, EbbtideError) else first_line(error)
            self._say(f"Warning: {self._problem}: {cause}")
            return True
        return False


class _Listener(StreamingQueryListener):
    """What Spark calls, in a thread of its own and while a query starts: it must not wait."""

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._report = _reported(attachment._say, "An event of Spark was not understood")

    @property
    def _jlistener(self) -> Any:
        """What the JVM calls: pyspark's own would ask it for every field of an event."""
        if not hasattr(self, "_bridge"):
            self._bridge = SparkContext._jvm.PythonStreamingQueryListenerWrapper(_Bridge(self))  # type: ignore[union-attr]
        return self._bridge

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802 - Spark's name
        with self._report:
            self._attachment.begin(str(event.id), str(event.runId), event.name)

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        with self._report:
            self._attachment.observe(json.loads(event.progress.json))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._report:
            self._attachment.end(str(event.runId))


class _Bridge(JStreamingQueryListener):
    """Takes the JVM's events as JSON, in one call each."""

    def __init__(self, listener: _Listener) -> None:
        super().__init__(listener)
        self._listener, self._attachment = listener, listener._attachment

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        with self._listener._report:
            ids = event.id().toString(), event.runId().toString()
            self._attachment.begin(*ids, event.name())

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        with self._listener._report:
            self._attachment.observe(json.loads(event.progress().json()))

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._listener._report:
            self._attachment.end(event.runId().toString())
