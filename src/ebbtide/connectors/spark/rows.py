"""Format result rows as text, and handle columns and folders that Spark writes."""

from __future__ import annotations

from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812

TIMESTAMP_FORMAT = "yyyy-MM-dd'T'HH:mm:ss.SSSXXX"
ORDER = "_ebbtide_order"
"""Of held rows, a column that says which of two is the later; only where an output keeps both."""


def quote_column(name: str) -> str:
    """A column's name quoted for SQL, whatever it contains."""
    return "`" + name.replace("`", "``") + "`"


def to_json(*columns: Column | str) -> Column:
    """Columns as JSON, as the sink writes them: a number or a time is equal if it reads equal."""
    options = {"timestampFormat": TIMESTAMP_FORMAT, "ignoreNullFields": "false"}
    return F.to_json(F.struct(*columns), options)


def path_exists(spark: SparkSession, path: str) -> bool:
    """Whether a path exists in whatever filesystem its URL names."""
    filesystem, at = _filesystem(spark, path)
    return bool(filesystem.exists(at))


def remove_tree(spark: SparkSession, path: str) -> None:
    """Remove a folder, and the one above it if that is empty then."""
    filesystem, at = _filesystem(spark, path)
    filesystem.delete(at, True)
    if not filesystem.listStatus(at.getParent()):
        filesystem.delete(at.getParent(), True)


def _filesystem(spark: SparkSession, path: str) -> tuple[Any, Any]:
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    jvm: Any = spark._jvm
    at = jvm.org.apache.hadoop.fs.Path(path)
    return at.getFileSystem(conf), at
