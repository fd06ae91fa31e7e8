"""What a session of Spark Connect tells about its queries: less than a JVM, and over a network.

Spark Connect does not tell where a query keeps its checkpoint. This process knows it nevertheless
of the queries that it starts itself: from the option of the writer, or from Spark's setting for all
checkpoints and the name of the query. Whatever it is, the checkpoint must name this query.
"""

from __future__ import annotations

import json
import re
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any

from pyspark import __version__ as pyspark_version
from pyspark.sql.streaming.listener import StreamingQueryListener

from ebbtide.attaching.follower import RunningQuery
from ebbtide.attaching.sessions import OnStart
from ebbtide.errors import EbbtideError, UsageError
from ebbtide.registry import is_remote

_ANSWER_SECONDS = 30
"""How long the server may take to add a listener."""
_ROOT = "spark.sql.streaming.checkpointLocation"
_GONE = re.compile(r"not.found|INVALID_HANDLE|NO_ACTIVE_SESSION|SESSION_", re.IGNORECASE)
"""What the server says of a query or of a session that it does not have any more."""
_MARK = "_ebbtide_tells"
_on_start: dict[str, OnStart] = {}
"""By the id of a session: what is told about the queries that this process starts in it."""


def is_connect(target: Any) -> bool:
    """Whether a session or a query is one of Spark Connect."""
    return ".connect." in type(target).__module__


class ConnectSession:
    """A session that a server has."""

    def __init__(self, session: Any) -> None:
        if pyspark_version.startswith("3."):
            raise UsageError(
                f"Spark Connect {pyspark_version} runs listeners in its server.",
                "Attach needs Spark Connect 4.0 or newer.",
            )
        self._session = session
        self.key = session.session_id

    def prepare(self) -> None:
        """Nothing: the settings of the server are not those of this process."""

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Have pyspark call a listener, which gets the events from the server."""
        bus = self._session.streams._sqlb._listener_bus
        # pyspark's thread for the events is a daemon if ours is: others keep a program from ending
        thread = threading.Thread(
            target=self._session.streams.addListener, args=(listener,), daemon=True
        )
        thread.start()
        thread.join(_ANSWER_SECONDS)
        if listener not in bus:
            raise EbbtideError("Spark Connect takes no listener.", "Is its server running?")

    def keep_listener(self, listener: StreamingQueryListener) -> None:
        """When the connection breaks, pyspark drops all of them."""
        if listener not in self._session.streams._sqlb._listener_bus:
            self.add_listener(listener)

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """It stays, and does nothing: to remove the last one, pyspark may wait forever."""

    def watch_starts(self, on_start: OnStart) -> None:
        """Be told of the queries that this process starts, and of their checkpoints."""

        def tell(query: Any, location: str | None) -> None:
            if location is not None or self._session.conf.get(_ROOT, None) is not None:
                on_start(query, location)  # Spark removes the checkpoints of others

        _on_start[self.key] = tell
        _wrap_writer()

    def watch_stop(self, before_stop: Callable[[], None]) -> None:
        """After it the server does not answer any more."""
        stop = self._session.stop

        def stop_after() -> None:
            with suppress(Exception):
                before_stop()
            _on_start.pop(self.key, None)
            stop()

        self._session.stop = stop_after

    def expect_end(self) -> None:
        """Have pyspark not warn that events end with the connection."""
        warnings.filterwarnings("ignore", "StreamingQueryListenerBus Handler thread")

    def active(self) -> list[Any]:
        """The queries that run now."""
        return list(self._session.streams.active)

    def find(self, query_id: str) -> Any:
        """A query that runs; None if it does not."""
        return self._session.streams.get(query_id)

    def describe(self, query: Any, name: str | None, location: str | None) -> RunningQuery | None:
        """Needs the location of the checkpoint, unless Spark has a setting for all of them."""
        if location is None:
            location = self._locate_by_name(name)
        return RunningQuery(
            location,
            name,
            lambda: self._is_active(query),
            lambda: _count_watermarks(query) == 1,
            lambda path: _qualify(path, location),
            lambda _batch: _recent_progress(query),
            id=str(query.id),
        )

    def _locate_by_name(self, name: str | None) -> str:
        root = self._session.conf.get(_ROOT, None)
        if root is None or name is None:
            raise UsageError(
                "Spark Connect does not tell where a query keeps its checkpoint.",
                'Type: ebbtide.attach(query, checkpoint="s3a://…")',
            )
        return f"{str(root).rstrip('/')}/{name}"

    def _is_active(self, query: Any) -> bool:
        """Whether a query runs; a server that does not answer may well run it."""
        if self.is_stopped():
            return False
        try:
            return bool(query.isActive)
        except Exception as error:
            return not (self.is_stopped() or _GONE.search(str(error).partition("\n")[0]))

    def is_stopped(self) -> bool:
        """Whether `spark.stop()` was called."""
        return bool(self._session.is_stopped)


def _wrap_writer() -> None:
    """Have the queries told that this process starts; nothing of what pyspark does is changed."""
    from pyspark.sql.connect.streaming.readwriter import DataStreamWriter

    for name in ("start", "toTable"):
        method = getattr(DataStreamWriter, name)
        if not hasattr(method, _MARK):
            setattr(DataStreamWriter, name, _telling(method))


def _telling(start: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(start)
    def start_and_tell(writer: Any, *arguments: Any, **keywords: Any) -> Any:
        query = start(writer, *arguments, **keywords)
        with suppress(Exception):
            if on_start := _on_start.get(query._session.session_id):
                on_start(query, find_option(writer._write_proto.options, "checkpointLocation"))
        return query

    setattr(start_and_tell, _MARK, True)
    return start_and_tell


def find_option(options: Mapping[str, str], name: str) -> str | None:
    """An option of a writer, whose names Spark compares without case.

    >>> find_option({"CheckpointLocation": "/mnt/c"}, "checkpointLocation")
    '/mnt/c'
    """
    return next((value for key, value in options.items() if key.lower() == name.lower()), None)


def _count_watermarks(query: Any) -> int:
    """How many watermarks the plan of a query has."""
    from pyspark.sql.connect import proto

    command = proto.StreamingQueryCommand()
    command.explain.extended = True
    plans = str(query._execute_streaming_query_cmd(command).explain.result)
    return plans.partition("== Analyzed Logical Plan ==")[0].count("EventTimeWatermark")


def _recent_progress(query: Any) -> list[str]:
    from pyspark.sql.connect import proto

    command = proto.StreamingQueryCommand()
    command.recent_progress = True
    recent = query._execute_streaming_query_cmd(command).recent_progress
    return [as_event(text) for text in recent.recent_progress_json]


def as_event(text: str) -> str:
    """The progress of a batch as Spark's events have it; asked for, Spark Connect has another form.

    >>> source = {"startOffset": None, "endOffset": '{"t":{"0":5}}', "numInputRows": 5}
    >>> fields = {"fields": [{"name": "rows"}, {"name": "sum"}]}
    >>> metrics = {"ours": {"values": [5, 7], "schema": fields}}
    >>> print(as_event(json.dumps({"sources": [source], "observedMetrics": metrics})))
    {"sources": [{"startOffset": null, "endOffset": {"t": {"0": 5}}, "numInputRows": 5}], \
"observedMetrics": {"ours": {"rows": 5, "sum": 7}}, "numInputRows": 5}
    """
    progress = json.loads(text)
    for source in progress["sources"]:
        for name in ("startOffset", "endOffset", "latestOffset"):
            if isinstance(source.get(name), str):
                with suppress(ValueError):  # not JSON, as some sources have it
                    source[name] = json.loads(source[name])
    progress["observedMetrics"] = {
        name: dict(zip((f["name"] for f in row["schema"]["fields"]), row["values"], strict=True))
        for name, row in progress.get("observedMetrics", {}).items()
    }
    progress["numInputRows"] = sum(source["numInputRows"] for source in progress["sources"])
    return json.dumps(progress)


def _qualify(path: str, checkpoint: str) -> str:
    """The path of a sink, if this process can tell what the server means by it."""
    is_local = path.startswith("/") and not is_remote(checkpoint)
    if is_local or ":" in path.partition("/")[0]:
        return path
    raise UsageError(
        f"Spark Connect does not tell in which store {path} lies.", "Name the sink with a scheme."
    )
