"""The one JVM that a Python process can have, and whose Spark context is in it."""

from __future__ import annotations

from contextlib import suppress
from weakref import WeakSet

from ebbtide.errors import UsageError, explain_import

try:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
except ImportError as error:
    raise explain_import(error, "Running a pipeline") from None

_END_SECONDS = 120
_OURS: WeakSet[SparkContext] = WeakSet()


def require_no_session() -> None:
    """Refuse to go on beside a session that somebody else has opened in this process.

    It lacks our jars and settings, and at the end we would close it.
    """
    active = SparkContext._active_spark_context
    if active is not None and active not in _OURS:
        raise UsageError(
            "This process has a Spark session already.",
            "Stop it first with spark.stop(), or run Ebbtide in a process of its own.",
        )


def note_ours(context: SparkContext) -> None:
    """Remember that we have opened a context."""
    _OURS.add(context)


def end_unused_jvm() -> None:
    """End a JVM whose session was stopped: the next session would run in it, without our jars."""
    if SparkContext._active_spark_context is None:
        end_jvm()


def end_jvm() -> None:
    """End the JVM of this process, if there is one, and wait until it has ended."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
        process.stdin.close()
    process.wait(_END_SECONDS)
    SparkContext._gateway = SparkContext._jvm = None
