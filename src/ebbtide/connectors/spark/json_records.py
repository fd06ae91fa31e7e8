"""Choose who decodes JSON records: a class of our own in the JVM where it is sure, or Spark alone.

`JsonRecords.java` reads the fields from the bytes of a record. What it is not sure to read as
Spark's `from_json` does, such as an odd number or a broken record, it leaves to Spark (ADR 031).
"""

from __future__ import annotations

import logging
from typing import Any

from py4j.java_gateway import JavaClass
from py4j.protocol import Py4JError
from pyspark.sql import Column, SparkSession
from pyspark.sql.types import StructField, StructType

from ebbtide.errors import UsageError, first_line

_log = logging.getLogger("ebbtide.decoder")

SETTING = "spark.ebbtide.decoder"
"""`ebbtide`, `spark` or `auto`; in `--conf` or in the pipeline's `conf`."""
KINDS = ("string", "tinyint", "smallint", "int", "bigint", "double", "boolean", "timestamp")
"""Spark's types that the class reads, by their numbers there."""
_LEGACY_TIMES = "spark.sql.legacy.timeParserPolicy"
_MOST_FIELDS = 64


def choose_reader(spark: SparkSession, fields: StructType, required: str) -> Column | None:
    """The column of a record's fields that are read from the bytes of `value`.

    It is null where Spark must decode the record. None if Spark decodes every record.
    """
    wanted = spark.conf.get(SETTING, "auto") or ""
    if wanted not in ("auto", "ebbtide", "spark"):
        raise UsageError(f"{SETTING} is {wanted!r}.", "Use auto, ebbtide or spark.")
    if wanted == "spark":
        return None
    problem = _why_not(spark, fields)
    if problem is None:
        try:
            return _read_fields(spark, fields, required)
        except (Py4JError, TypeError) as error:  # a class of Spark's, or of our jar, is another one
            problem = f"this Spark or its jar of Ebbtide does not fit: {first_line(error)}"
            _log.warning("Spark decodes all records itself, which costs more: %s", problem)
    if wanted == "auto":
        return None
    raise UsageError(
        f"Ebbtide's decoder cannot read these records: {problem}.",
        f"Leave {SETTING} out: Spark then decodes them.",
    )


def _why_not(spark: SparkSession, fields: StructType) -> str | None:
    """Why these fields cannot be read exactly as Spark reads them."""
    # Spark gives it back as the user wrote it
    if str(spark.conf.get(_LEGACY_TIMES)).upper() == "LEGACY":
        return f"{_LEGACY_TIMES} is LEGACY"
    if len({field.name for field in fields}) < len(fields):
        return "two fields have the same name"
    if len(fields) > _MOST_FIELDS:
        return f"there are more than {_MOST_FIELDS} fields"
    for field in fields:
        if (kind := field.dataType.simpleString()) not in KINDS:
            return f"field {field.name} is {kind.upper()}"
    jvm: Any = spark._jvm
    if not isinstance(jvm.ebbtide.JsonRecords, JavaClass):
        return (
            "the session has not got Ebbtide's jar, which `python -m ebbtide.runtime.submit` names "
            "for spark-submit"
        )
    return None


def _read_fields(spark: SparkSession, fields: StructType, required: str) -> Column:
    jvm: Any = spark._jvm
    gateway: Any = spark.sparkContext._gateway
    names = gateway.new_array(jvm.java.lang.String, len(fields))
    kinds = gateway.new_array(jvm.int, len(fields))
    for number, field in enumerate(fields):
        names[number] = field.name
        kinds[number] = KINDS.index(field.dataType.simpleString())
    catalyst: Any = jvm.org.apache.spark.sql.catalyst
    zone = catalyst.util.DateTimeUtils.getZoneId(spark.conf.get("spark.sql.session.timeZone"))
    # as of `from_json`: a field that is missing is null, also if the schema says NOT NULL
    nullable = StructType([StructField(field.name, field.dataType) for field in fields])
    reader = jvm.ebbtide.JsonRecords(names, kinds, fields.fieldNames().index(required), zone)
    to_seq = jvm.PythonUtils.toSeq
    may_be_null = is_deterministic = True
    read = catalyst.expressions.objects.Invoke(
        catalyst.expressions.Literal.fromObject(reader),
        "read",
        spark._jsparkSession.parseDataType(nullable.json()),
        to_seq([catalyst.analysis.UnresolvedAttribute.quoted("value")]),
        to_seq([]),
        True,  # null for a null value
        may_be_null,
        is_deterministic,
    )
    return _to_column(jvm, read)


def _to_column(jvm: Any, expression: Any) -> Column:
    """An expression of Spark's as a column; Spark 4 moved the classes."""
    try:
        from pyspark.sql.classic.column import Column as ClassicColumn
    except ImportError:
        return Column(jvm.org.apache.spark.sql.Column(expression))
    return ClassicColumn(jvm.org.apache.spark.sql.classic.ExpressionUtils.column(expression))
