"""Find out on which event times each result of a pipeline depends, from the transform's plan.

A plan that is not understood is refused, because a range of it would give a wrong result.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from typing import Any, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from ebbtide.connectors.spark import rows
from ebbtide.errors import UsageError
from ebbtide.pipeline import Pipeline
from ebbtide.reprocessing.ranges import Shape, refuse_range, require_range

_WINDOW, _SESSION = "spark.timeWindow", "spark.sessionWindow"
_PROBE_MICROS = 1_700_000_000_123_456
"""Any time that needs 64 bits: py4j passes smaller numbers as 32."""
_ROW_BY_ROW = {
    *("Project", "Filter", "SubqueryAlias", "EventTimeWatermark", "Generate", "Expand"),
    *("StreamingRelation", "StreamingRelationV2", "Repartition", "RepartitionByExpression"),
    *("MapInPandas", "MapInArrow", "ArrowEvalPython", "BatchEvalPython", "ResolvedHint", "View"),
    *("CollectMetrics", "Union", "Join", "LogicalRelation", "LocalRelation", "Range"),
    *("LogicalRDD", "DataSourceV2Relation", "RebalancePartitions", "TypedFilter"),
}
_WHY = {
    "Deduplicate": "drops duplicates among all events that ever were",
    "DeduplicateWithinWatermark": "drops duplicates by the order in which events came",
    "GlobalLimit": "takes the first rows of all",
    "Window": "uses a window function, which Spark does not stream",
}


def find_shape(spark: SparkSession, pipeline: Pipeline, schema: StructType) -> Shape:
    """What a pipeline's results depend on; refused if that is more than a range of event time."""
    require_range(pipeline)
    if (sessions := pipeline.sessions) is not None:
        return Shape("session", sessions.gap, identity=(rows.quote_column(sessions.key),))
    with tempfile.TemporaryDirectory() as empty:
        source = spark.readStream.schema(schema).parquet(f"file://{empty}")
        return _Reader(spark, pipeline, source, pipeline.query(source)).shape()


def find_sessions(spark: SparkSession, results: DataFrame) -> DataFrame:
    """The sessions behind a result, including those that the transform drops: `start`, `end`."""
    nodes = rows.walk_plan(results._jdf.queryExecution().analyzed())
    aggregate = next(node for node in nodes if node.nodeName() == "Aggregate")
    grouping = aggregate.groupingExpressions()
    session = next(g for g in rows.each_of(grouping) if _mark(g) == _SESSION)
    jvm: Any = spark._jvm
    bare = _copy(spark, aggregate, {1: jvm.PythonUtils.toSeq([session])})
    return rows.to_frame(spark, bare).select(f"{rows.quote_column(session.name())}.*")


def _copy(spark: SparkSession, node: Any, changed: Mapping[int, Any]) -> Any:
    """A node with other arguments; how many it has depends on the version of Spark."""
    gateway: Any = spark.sparkContext._gateway
    arguments = gateway.new_array(gateway.jvm.java.lang.Object, node.productArity())
    for number in range(node.productArity()):
        arguments[number] = changed.get(number, node.productElement(number))
    return node.makeCopy(arguments)


class _Reader:
    def __init__(
        self, spark: SparkSession, pipeline: Pipeline, source: DataFrame, result: DataFrame
    ) -> None:
        self._jvm: Any = spark._jvm
        self._gateway: Any = spark.sparkContext._gateway
        self._pipeline = pipeline
        self._zone = spark.conf.get("spark.sql.session.timeZone")
        self._plan = result._jdf.queryExecution().analyzed()
        self._nodes = list(rows.walk_plan(self._plan))
        origin = source._jdf.queryExecution().analyzed().output()
        self._event_time = next(a for a in rows.each_of(origin) if a.name() == pipeline.event_time)
        self._made = dict(_definitions(self._nodes))

    def shape(self) -> Shape:
        aggregates = [node for node in self._nodes if node.nodeName() == "Aggregate"]
        self._refuse_unknown()
        if not aggregates:
            start = self._column(lambda made: _same(made, self._event_time))
            return Shape("stateless", start=start)
        if len(aggregates) > 1:
            raise self._refusal("aggregates what it has aggregated")
        return self._aggregated(aggregates[0])

    def _refuse_unknown(self) -> None:
        for node in self._nodes:
            name = node.nodeName()
            if name in _WHY:
                raise self._refusal(_WHY[name])
            streams = [child for child in rows.each_of(node.children()) if child.isStreaming()]
            if len(streams) > 1:
                raise self._refusal(f"joins the stream with itself ({name})")
            if name not in _ROW_BY_ROW and name != "Aggregate":
                what = f"has the step {name}, whose state depends on more than a range"
                raise self._refusal(what)

    def _aggregated(self, aggregate: Any) -> Shape:
        grouping = list(rows.each_of(aggregate.groupingExpressions()))
        window = next((g for g in grouping if _mark(g)), None)
        if window is None:
            raise self._refusal("aggregates over all events that ever were, not over windows")
        bounds = [self._bounds(each) for each in self._resolve(window)]
        size = bounds[0][1] - bounds[0][0]
        start, end = (self._window_column(window, field) for field in ("start", "end"))
        identity = self._identity(grouping, window, start)
        if _mark(window) == _SESSION:
            if None in (start, end):
                raise self._refusal("does not say in its result when a session begins and ends")
            return Shape("session", _micros(size), start=start, end=end, identity=identity)
        if self._event_time.dataType().typeName() == "timestamp_ntz" and self._zone != "UTC":
            raise self._refusal(
                f"has windows over a time without a zone, cut by the clock of {self._zone}"
            )
        starts = sorted((first for first, _ in bounds), reverse=True)
        slide = starts[0] - starts[1] if len(starts) > 1 else size
        if slide != size and start is None:
            raise self._refusal("does not say in its result when a window begins")
        return Shape(
            "windowed", _micros(size), _micros(slide), _micros(starts[0] % slide),
            start, end, identity,
        )  # fmt: skip

    def _resolve(self, attribute: Any) -> list[Any]:
        """The expressions that compute an attribute: several for windows that overlap."""
        *_, last = self._origins(attribute)
        if last.nodeName() != "AttributeReference":
            return [last]
        if not (several := self._made.get(last.exprId().toString(), [])):
            raise self._refusal("has a window that it did not make itself")
        return several

    def _bounds(self, expression: Any) -> tuple[int, int]:
        """A window's start and end for one event, computed by Spark."""
        used = list(rows.each_of(expression.references().toSeq()))
        if not all(_same(attribute, self._event_time) for attribute in used):
            names = " and ".join(sorted(a.name() for a in used))
            raise self._refusal(
                f"has windows over {names}, not over its event time {self._pipeline.event_time}"
            )
        expressions = self._jvm.org.apache.spark.sql.catalyst.expressions
        input_ = getattr(expressions, "package$AttributeSeq")(expression.references().toSeq())
        bound = expressions.BindReferences.bindReference(expression, input_, False)
        row = self._gateway.new_array(self._jvm.java.lang.Object, 1)
        row[0] = _PROBE_MICROS
        made = bound.eval(expressions.GenericInternalRow(row))
        return made.getLong(0), made.getLong(1)

    def _origins(self, expression: Any) -> Iterator[Any]:
        """An attribute, what it renames, and so on down to what was computed."""
        while expression is not None:
            yield expression
            named = expression.nodeName() == "AttributeReference"
            made = self._made.get(expression.exprId().toString(), []) if named else []
            expression = made[0] if len(made) == 1 else None

    def _column(self, wanted: Callable[[Any], bool]) -> str | None:
        """The result column with an origin that `wanted` accepts, however often it was renamed."""
        columns = (
            a for a in rows.each_of(self._plan.output()) if any(map(wanted, self._origins(a)))
        )
        return next((rows.quote_column(attribute.name()) for attribute in columns), None)

    def _window_column(self, window: Any, field: str) -> str | None:
        """The result column with the window's start or end: a field of the window, or its own."""
        if (whole := self._column(lambda made: _same(made, window))) is not None:
            return f"{whole}.{field}"

        def is_field(made: Any) -> bool:
            return (
                made.nodeName() == "GetStructField"
                and made.childSchema().apply(made.ordinal()).name() == field
                and any(_same(origin, window) for origin in self._origins(made.child()))
            )

        return self._column(is_field)

    def _identity(self, grouping: list[Any], window: Any, start: str | None) -> tuple[str, ...]:
        """The result columns that identify its rows; empty if the result lacks one of them."""
        columns = [
            start if group is window else self._column(group.semanticEquals) for group in grouping
        ]
        return () if None in columns else cast(tuple[str, ...], tuple(columns))

    def _refusal(self, why: str) -> UsageError:
        return refuse_range(self._pipeline, why)


def _mark(grouping: Any) -> str | None:
    """Spark's mark for a window or a session on a grouping expression."""
    if grouping.nodeName() != "AttributeReference":
        return None
    marks = grouping.metadata()
    return next((mark for mark in (_SESSION, _WINDOW) if marks.contains(mark)), None)


def _definitions(nodes: list[Any]) -> Iterator[tuple[str, list[Any]]]:
    """By its id, the expressions that compute each attribute of the plan."""
    for node in nodes:
        name = node.nodeName()
        if name == "Expand":
            for index, attribute in enumerate(rows.each_of(node.output())):
                made = [row.apply(index) for row in rows.each_of(node.projections())]
                yield attribute.exprId().toString(), made
            continue
        listed = {"Project": "projectList", "Aggregate": "aggregateExpressions"}.get(name)
        for expression in rows.each_of(getattr(node, listed)()) if listed else ():
            if expression.nodeName() == "Alias":
                yield expression.exprId().toString(), [expression.child()]


def _same(expression: Any, attribute: Any) -> bool:
    named = str(expression.nodeName()) == "AttributeReference"
    return named and bool(expression.exprId().toString() == attribute.exprId().toString())


def _micros(count: int) -> timedelta:
    return timedelta(microseconds=count)
