"""The one JVM that a Python process can have, and whose Spark context is in it."""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakSet

from ebbtide.errors import UsageError, explain_import

try:
    from py4j.java_gateway import JavaObject
    from py4j.protocol import Py4JError
    from pyspark import SparkContext
except ImportError as error:
    raise explain_import(error, "Running a pipeline") from None

_END_SECONDS = 120
_PRODUCERS = "InternalKafkaProducerPool$"
_LASTING = ("GATEWAY_SERVER", "j", "t")
"""The objects by which py4j finds the JVM; all others came from a command."""
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


def leave_jvm() -> None:
    """Leave a JVM that another process keeps, with nothing in it that came from this one.

    The Spark context took sessions, views, jars and Python workers with it when it was stopped.
    What is left are caches, which know only the names of what they hold, and objects that Python
    used. Raises an error of py4j if the context is not stopped or the JVM is gone.
    """
    gateway: Any = SparkContext._gateway
    jvm: Any = SparkContext._jvm
    if jvm.org.apache.spark.SparkEnv.get() is not None:
        raise Py4JError("The Spark context is not stopped.")
    jvm.org.apache.hadoop.fs.FileSystem.closeAll()
    jvm.org.apache.hadoop.security.UserGroupInformation.reset()
    with suppress(Py4JError, TypeError):  # not every Spark has Delta
        jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()
    with suppress(Py4JError, TypeError):  # nor Kafka
        producers = getattr(jvm.org.apache.spark.sql.kafka010.producer, _PRODUCERS)
        getattr(producers, "MODULE$").reset()
    held = JavaObject("GATEWAY_SERVER", gateway._gateway_client).getGateway().getBindings()
    held.keySet().retainAll(_LASTING)
    gateway.close()
    SparkContext._gateway = SparkContext._jvm = None
