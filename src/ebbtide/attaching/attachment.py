"""Attach to a Spark session or to a query: follow what they run."""

from __future__ import annotations

import atexit
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

from pyspark.sql.streaming.listener import JStreamingQueryListener, StreamingQueryListener

from ebbtide.attaching.follower import Follower, RunningQuery
from ebbtide.errors import EbbtideError, UsageError, first_line
from ebbtide.hadoop import use_spark_settings
from ebbtide.runtime import metrics_endpoint

_LAST_WORDS_SECONDS = 5
"""How long the end of a program may wait until all is written."""
_WATCH_SECONDS = 5
"""How often runs are looked at whose end no event has told."""
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
    session, key = _find_session(target, checkpoint, is_session=is_session)
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


def detach(session: Any) -> None:
    """Stop following the queries of a session, if they are followed."""
    attachment = _attachments.pop(_find_session(session, None, is_session=True)[1], None)
    if attachment is not None:
        attachment.close()


def _find_session(target: Any, checkpoint: str | None, *, is_session: bool) -> tuple[Any, object]:
    """The session of what is attached to, and what tells it from others."""
    if _is_connect(target):
        if is_session or checkpoint is None:
            raise UsageError(
                "Spark Connect does not tell where a query keeps its checkpoint.",
                'Attach to the query: ebbtide.attach(query, checkpoint="s3a://…")',
            )
        return target._session, target._session.session_id
    if is_session:
        return target, target._jsparkSession.hashCode()
    from pyspark.sql import SparkSession

    jvm_session = target._jsq.sparkSession()
    context = SparkSession.builder.getOrCreate().sparkContext
    return SparkSession(context, jvm_session), jvm_session.hashCode()


def _is_connect(target: Any) -> bool:
    return ".connect." in type(target).__module__


class Attachment:
    """What follows the queries of a session. `close` ends it; the queries go on."""

    def __init__(self, session: Any, say: Callable[[str], None]) -> None:
        self.closed = False
        self.followed: dict[str, Follower] = {}
        """By the id of the run."""
        self._session, self._lock = session, threading.Lock()
        self._say = partial(_say_safely, say)
        self._all = False
        self._checkpoints: dict[str, str | None] = {}
        """Of the queries that are followed if not all are: by id, where Spark does not tell."""
        self._server: metrics_endpoint.MetricsServer | None = None
        self._listener = _Listener(self)
        if not _is_connect(session):
            with reported(self._say, "The settings of Spark cannot be read"):
                use_spark_settings(dict(session.sparkContext.getConf().getAll()))
        with reported(self._say, "No query is followed"):
            session.streams.addListener(self._listener)
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
        with reported(self._say, f"Query {name or query_id} is not followed"), self._lock:
            if run_id in self.followed or (query := self._find(query_id, name)) is None:
                return
            metrics = metrics_endpoint.Metrics(name or query_id, self._say)
            follower = Follower(query, metrics, self._say, partial(self._forget, run_id))
            self.followed[run_id] = follower
            if self._server is not None:
                self._server.add(query.location, metrics)
            follower.start()

    def _find(self, query_id: str, name: str | None) -> RunningQuery | None:
        """A running query; None if it has ended, or has a checkpoint that Spark will remove."""
        query = self._session.streams.get(query_id)
        if query is None:
            return None
        if (location := self._checkpoints.get(query_id)) is not None:
            return RunningQuery(location, name, lambda: query.isActive, lambda: False, str)
        execution = query._jsq.streamingQuery()
        location = str(execution.resolvedCheckpointRoot())
        if _TEMPORARY.search(location):
            return None
        jvm = self._session._jvm
        return RunningQuery(
            location,
            name,
            lambda: bool(query._jsq.isActive()) and not self._is_stopped(),
            lambda: str(execution.logicalPlan().toString()).count("EventTimeWatermark") == 1,
            self._qualify,
            str(execution.outputMode().toString()).lower(),
            (int(jvm.java.lang.ProcessHandle.current().pid()),),
        )

    def _qualify(self, path: str) -> str:
        """A path with its scheme and folder, as the JVM resolves it."""
        context = self._session.sparkContext
        parsed = context._jvm.org.apache.hadoop.fs.Path(path)
        filesystem = parsed.getFileSystem(context._jsc.hadoopConfiguration())
        return str(filesystem.makeQualified(parsed).toString())

    def _is_stopped(self) -> bool:
        """Whether `spark.stop()` was called, after which no event comes any more."""
        if _is_connect(self._session):
            return False
        return bool(self._session._jsparkSession.sparkContext().isStopped())

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
            if not self.followed and not _asks_yes(lambda: not self._is_stopped()):
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
        """Stop following; the queries go on without."""
        self.closed = True
        with reported(self._say, "Spark's listener cannot be removed"):
            if not self._is_stopped():
                self._session.streams.removeListener(self._listener)
        followers, deadline = list(self.followed.values()), time.monotonic() + _LAST_WORDS_SECONDS
        for follower in followers:
            follower.end()
        for follower in followers:
            follower.join(deadline)
        if self._server is not None:
            self._server.close()
            self._server = None

    def _end_with_program(self) -> None:
        """Let what has ended be written. What still runs dies with the program, and its lease."""
        deadline = time.monotonic() + _LAST_WORDS_SECONDS
        for follower in list(self.followed.values()):
            if _asks_yes(follower.query.is_active):
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
        with self.reported():
            self._attachment.begin(str(event.id), str(event.runId), event.name)

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
            progress = event.progress()
            self._attachment.observe(progress.runId().toString(), progress.json())

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        pass

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        with self._listener.reported():
            self._attachment.end(event.runId().toString())
