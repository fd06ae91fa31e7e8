"""Choose whether the tasks write an archive's files themselves, or Delta's sink does (ADR 027)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

from pyspark.sql import SparkSession

from ebbtide.errors import UsageError

SETTING = "spark.ebbtide.archiveWriter"
"""`auto` or `delta`; in `--conf` or in the pipeline's `conf`."""
_BATCH_BYTES = "spark.sql.execution.arrow.maxBytesPerBatch"
_MOST_BYTES = 2**30
"""An Arrow batch cannot have more than twice as many."""
_LARGE = "spark.sql.execution.arrow.useLargeVarTypes"


def may_write_files(spark: SparkSession) -> bool:
    """Whether the tasks of this session can write an archive's files, and the user lets them."""
    wanted = spark.conf.get(SETTING, "auto")
    if wanted not in ("auto", "delta"):
        raise UsageError(f"{SETTING} is {wanted!r}.", "Use auto or delta.")
    return (
        wanted == "auto"
        # the workers of a cluster may lack pyarrow
        and str(spark.sparkContext.master).startswith("local")
        and all(map(find_spec, ("pyarrow", "numpy")))
        # without a limit, an Arrow batch of large records would fail
        and 0 < _batch_bytes(spark) <= _MOST_BYTES
        and str(spark.conf.get(_LARGE, "false")).lower() != "true"
    )


def _batch_bytes(spark: SparkSession) -> int:
    """How many bytes an Arrow batch may have; 0 if this version of Spark does not limit them."""
    if not spark.conf.isModifiable(_BATCH_BYTES):  # unknown to Spark 3.5
        return 0
    text = str(spark.conf.get(_BATCH_BYTES))  # 67108864b, or 64m as the user wrote it
    jvm: Any = spark.sparkContext._jvm
    return int(jvm.org.apache.spark.network.util.JavaUtils.byteStringAsBytes(text))
