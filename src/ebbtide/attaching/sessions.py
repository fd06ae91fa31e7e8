"""What a session with a JVM tells about its queries; `connect` has the same of Spark Connect."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import StreamingQueryListener

from ebbtide.attaching.follower import RunningQuery
from ebbtide.hadoop import use_spark_settings

_TEMPORARY = re.compile(r"/temporary-[0-9a-f-]{36}$")
"""The checkpoint of a query that names none; Spark removes it."""
OnStart = Callable[[Any, str | None], None]
"""Called with a query that was started, and the location of its checkpoint."""


class FollowedSession(Protocol):
    """A session whose queries are followed."""

    @property
    def key(self) -> object:
        """What tells it from others."""

    def prepare(self) -> None:
        """Take over what its stores need."""

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Have Spark call a listener."""

    def keep_listener(self, listener: StreamingQueryListener) -> None:
        """Add it again if Spark has dropped it."""

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Have Spark call it no more."""

    def watch_starts(self, on_start: OnStart) -> None:
        """Be told of queries that no event tells where they keep their checkpoint."""

    def watch_stop(self, before_stop: Callable[[], None]) -> None:
        """Be called before the session is stopped, where nothing can be asked after it."""

    def expect_end(self) -> None:
        """Prepare for the end of the session or of the program."""

    def active(self) -> list[Any]:
        """The queries that run now."""

    def find(self, query_id: str) -> Any:
        """A query that runs; None if it does not."""

    def describe(self, query: Any, name: str | None, location: str | None) -> RunningQuery | None:
        """What Spark tells about a query; None if its checkpoint is one that Spark removes."""

    def is_stopped(self) -> bool:
        """Whether it was stopped, after which no event comes any more."""


class ClassicSession:
    """A session whose JVM this process can ask."""

    def __init__(self, session: SparkSession) -> None:
        self._session: Any = session
        self.key = self._session._jsparkSession.hashCode()

    @classmethod
    def of_query(cls, query: Any) -> ClassicSession:
        """The session in which a query was started."""
        context = SparkSession.builder.getOrCreate().sparkContext
        return cls(SparkSession(context, query._jsq.sparkSession()))

    def prepare(self) -> None:
        """Use Spark's settings for every store."""
        use_spark_settings(dict(self._session.sparkContext.getConf().getAll()))

    def add_listener(self, listener: StreamingQueryListener) -> None:
        """Have the JVM call a listener."""
        self._session.streams.addListener(listener)

    def keep_listener(self, listener: StreamingQueryListener) -> None:
        """The JVM drops none."""

    def remove_listener(self, listener: StreamingQueryListener) -> None:
        """Not from a session that is stopped, or whose JVM is gone."""
        with suppress(ConnectionError):
            if not self.is_stopped():
                self._session.streams.removeListener(listener)

    def watch_starts(self, on_start: OnStart) -> None:
        """The events tell all."""

    def watch_stop(self, before_stop: Callable[[], None]) -> None:
        """The JVM still answers after it."""

    def expect_end(self) -> None:
        """Nothing is needed."""

    def active(self) -> list[Any]:
        """The queries that run now."""
        return list(self._session.streams.active)

    def find(self, query_id: str) -> Any:
        """A query that runs; None if it does not."""
        return self._session.streams.get(query_id)

    def describe(self, query: Any, name: str | None, location: str | None) -> RunningQuery | None:
        """The JVM knows the location itself."""
        execution = query._jsq.streamingQuery()
        location = str(execution.resolvedCheckpointRoot())
        if _TEMPORARY.search(location):
            return None
        jvm = self._session._jvm
        return RunningQuery(
            location,
            name,
            lambda: bool(query._jsq.isActive()) and not self.is_stopped(),
            lambda: str(execution.logicalPlan().toString()).count("EventTimeWatermark") == 1,
            self._qualify,
            partial(_recent_progress, query),
            (int(jvm.java.lang.ProcessHandle.current().pid()),),
            output_mode=str(execution.outputMode().toString()).lower(),
        )

    def _qualify(self, path: str) -> str:
        """A path with its scheme and folder, as the JVM resolves it."""
        context = self._session.sparkContext
        parsed = context._jvm.org.apache.hadoop.fs.Path(path)
        filesystem = parsed.getFileSystem(context._jsc.hadoopConfiguration())
        return str(filesystem.makeQualified(parsed).toString())

    def is_stopped(self) -> bool:
        """Whether `spark.stop()` was called."""
        return bool(self._session._jsparkSession.sparkContext().isStopped())


def _recent_progress(query: Any, batch: int) -> list[str]:
    """The last batches after one; the JVM is asked for as little as possible."""
    recent, texts = query._jsq.recentProgress(), list[str]()
    for index in range(len(recent) - 1, -1, -1):
        if recent[index].batchId() <= batch:
            break
        texts.append(str(recent[index].json()))
    return texts[::-1]
