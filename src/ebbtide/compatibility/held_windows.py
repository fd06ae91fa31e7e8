"""Read which windows the state holds, with Spark's state reader (4.0 and later)."""

from __future__ import annotations

from datetime import datetime, timedelta

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import TimestampType

from ebbtide.checkpoint import Checkpoint
from ebbtide.compatibility.operators import OperatorState
from ebbtide.compatibility.windows import HeldWindows
from ebbtide.errors import EbbtideError
from ebbtide.runtime import versions
from ebbtide.state import StatePart, parts, read_state

MAX_BYTES = 256 << 20
"""State that is larger is not read: a check must be quick."""
_MAX_WINDOWS = 1_000
_EPOCH = datetime(1970, 1, 1)


def read_windows(
    spark: SparkSession, checkpoint: Checkpoint, operator: OperatorState
) -> tuple[HeldWindows | None, str]:
    """The windows in an operator's state; None, and why, if they cannot be read."""
    kind, name = operator.windows[0]
    part = StatePart(operator.id)
    try:
        versions.require(versions.STATE_READER)
        batch = parts.require_state(checkpoint, part)
        size = parts.measure(checkpoint, part, batch)
        if size > MAX_BYTES:
            return None, f"the state has {size >> 20} MiB"
        rows = read_state(spark, checkpoint, part, batch, raw=True)
        holder = "key" if kind == "window" else "value"
        window = F.col(f"{holder}.`{name}`")
        found = rows.select(window["start"].alias("start"), window["end"].alias("end"))
        if found.schema["start"].dataType == TimestampType():
            found = found.select(F.unix_micros("start").alias("start"), F.unix_micros("end"))
        spans = found.distinct().limit(_MAX_WINDOWS).collect()
    except EbbtideError as error:
        return None, error.problem.rstrip(".")
    except (PySparkException, Py4JError):
        return None, "Spark's state reader cannot read it"
    return HeldWindows(operator.id, kind, tuple((_micros(a), _micros(b)) for a, b in spans)), ""


def _micros(time: int | datetime) -> int:
    """Microseconds as Spark counts them: a time without a zone is as if it were UTC.

    >>> _micros(datetime(1970, 1, 1, 0, 10))
    600000000
    """
    return time if isinstance(time, int) else (time - _EPOCH) // timedelta(microseconds=1)
