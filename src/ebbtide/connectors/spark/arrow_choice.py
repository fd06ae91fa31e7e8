"""Choose whether Spark decodes every record itself, or Arrow batches of them in Python workers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline

if TYPE_CHECKING:
    from ebbtide.connectors.spark.arrow_json import ArrowJson

SETTING = "spark.ebbtide.decoder"
"""`arrow`, `spark` or `auto`; in `--conf` or in the pipeline's `conf`."""
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MOST_BYTES = 2**30
"""An Arrow batch cannot have more than twice as many."""
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"
_LEGACY_TIMES = "spark.sql.legacy.timeParserPolicy"
_FEW = 20_000
"""Fewer records in a batch than that cost Spark less than the way to Python and back."""
_UTC = ("UTC", "Etc/UTC", "Z", "GMT", "+00:00")


def choose_arrow(
    spark: SparkSession, pipeline: Pipeline, parsed: StructType, most: int | None = None
) -> ArrowJson | None:
    """How to decode Arrow batches of records; None if Spark decodes each record itself.

    With a cluster only if the user asks for it, because its workers may lack pyarrow. Nor with
    batches of few records, which do not repay the way to Python and back.
    """
    wanted = spark.conf.get(SETTING, "auto") or ""
    if wanted not in ("auto", "arrow", "spark"):
        raise UsageError(f"{SETTING} is {wanted!r}.", "Use auto, arrow or spark.")
    problem = _why_not(spark, parsed)
    if wanted == "arrow" and problem:
        raise UsageError(
            f"Arrow cannot decode the records of pipeline {pipeline.name}: {problem}.",
            f"Leave {SETTING} out: Spark then decodes them.",
        )
    is_local = str(spark.sparkContext.master).startswith("local")
    pays = is_local and (most is None or most >= _FEW) and pipeline.profile != "latency"
    if wanted == "spark" or problem or (wanted == "auto" and not pays):
        return None
    from ebbtide.connectors.spark.arrow_json import ArrowJson

    zone = spark.conf.get("spark.sql.session.timeZone")
    fields = tuple((field.name, field.dataType.simpleString()) for field in parsed)
    return ArrowJson(fields, pipeline.event_time, is_utc=zone in _UTC)


def _why_not(spark: SparkSession, parsed: StructType) -> str | None:
    """Why Arrow cannot decode records to these fields exactly as Spark does."""
    try:
        from ebbtide.connectors.spark.arrow_json import KINDS
    except ImportError:
        return "pyarrow or numpy is not installed"
    if not 0 < (_batch_bytes(spark) or 0) <= _MOST_BYTES:
        return f"{_BATCH_BYTES} is not set, so that a batch of large records could fail"
    # Spark reads these in any case, and gives them back as the user wrote them
    if str(spark.conf.get(_LEGACY_TIMES)).upper() == "LEGACY":
        return f"{_LEGACY_TIMES} is LEGACY"
    if str(spark.conf.get(_LARGE, "false")).lower() == "true":
        return f"{_LARGE} is set"
    if len({field.name for field in parsed}) < len(parsed):
        return "two fields have the same name"
    for field in parsed:
        if (kind := field.dataType.simpleString()) not in KINDS:
            return f"field {field.name} is {kind.upper()}"
    return None


def _batch_bytes(spark: SparkSession) -> int | None:
    """How many bytes an Arrow batch may have; None if this version of Spark does not limit them."""
    if not spark.conf.isModifiable(_BATCH_BYTES):  # unknown to Spark 3.5
        return None
    text = str(spark.conf.get(_BATCH_BYTES))  # 67108864b, or 64m as the user wrote it
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text))
