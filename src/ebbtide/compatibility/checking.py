"""Check whether a new query can go on from a checkpoint.

Steps: **1** read what the checkpoint demands, without Spark; **2** open a session, import the
user's code and call its function, none of which may start a query; **3** have Spark plan the query;
**4** read the windows in the state; **5** compare.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from shlex import quote
from typing import Any, TypeVar

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ebbtide.checkpoint import Checkpoint
from ebbtide.checks import BREAKS, COMPATIBLE, MISBINDS, REFUSES, PartVerdict
from ebbtide.compatibility import compare, compare_output, compare_sources, compare_state
from ebbtide.compatibility.demands import (
    CheckpointDemands,
    demand_nothing,
    describe_sources,
    find_missing,
    read_demands,
)
from ebbtide.compatibility.held_windows import read_windows
from ebbtide.compatibility.planned import PlannedQuery
from ebbtide.compatibility.planning import Planner
from ebbtide.compatibility.verdicts import CompatibilityReport
from ebbtide.compatibility.windows import HeldWindows
from ebbtide.compatibility.writers import Written, describe_written
from ebbtide.config import Settings, SparkFlags
from ebbtide.connectors import connector_of, sources
from ebbtide.errors import EbbtideError, UsageError, first_line
from ebbtide.pipeline import Pipeline
from ebbtide.runtime import cluster, failures, session

_NO_BROKER = "127.0.0.1:9092"
"""Planning asks no broker, but Spark wants an address."""
_STATE_PARTS = ("operator", "Spark", "state", "output mode")
Build = Callable[[SparkSession], DataFrame | DataStreamWriter]
T = TypeVar("T")


def check_query(
    location: str,
    load: Callable[[], Build | Pipeline],
    settings: Settings,
    flags: SparkFlags = SparkFlags(),  # noqa: B008 - frozen
    spark: SparkSession | None = None,
    *,
    allow_missing: bool = False,
) -> CompatibilityReport:
    """Compare a query with a checkpoint; nothing is run, and nothing is changed.

    `load` gives a pipeline, or the function that builds the query. It is called when there is a
    session: a script may ask for one when it is imported. Without `spark`, a session is opened.
    With `allow_missing`, a query that has no checkpoint yet is planned as for its first start.
    """
    if spark is not None and getattr(spark, "_jsparkSession", None) is None:
        raise UsageError(
            "A session of Spark Connect does not show how Spark plans a query.",
            "Leave the session out, or pass one that runs in this process.",
        )
    # 1
    checkpoint: Checkpoint | None = None
    demands, missing = demand_nothing(location), None
    if allow_missing:
        missing = find_missing(location)
    if missing is None:
        checkpoint, demands = read_demands(location)
    with _borrow(spark) if spark else _open(location, settings, flags, demands) as opened:
        # 2
        build = load_build(load)
        if isinstance(build, Pipeline):
            result: DataFrame | DataStreamWriter = _open_pipeline(opened, build, settings, demands)
        else:
            result = call_build(opened, build)
        written = replace(describe_written(result), is_pipeline=isinstance(build, Pipeline))
        if checkpoint is not None:
            return check_written(checkpoint, demands, written, opened)
        query = Planner(opened, demands).plan(written.rows, written, None)
        return _report_missing(demands, query, f"{missing} yet")


def check_written(
    checkpoint: Checkpoint, demands: CheckpointDemands, written: Written, spark: SparkSession
) -> CompatibilityReport:
    """Compare a query that was built, but not started, with a checkpoint."""
    # 3
    query = Planner(spark, demands).plan(written.rows, written, checkpoint)
    if folders := compare_sources.find_folders(demands, query):
        demands = replace(demands, sources=describe_sources(checkpoint, folders))
    # 4
    held, unread = _read_held(spark, checkpoint, demands, query)
    # 5
    return _report(checkpoint, demands, query, held, unread)


def load_build(load: Callable[[], T]) -> T:
    """Import a user's code, which must not start a query."""
    with _guard("The module"):
        return load()


@contextmanager
def _borrow(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark


@contextmanager
def _open(
    location: str, settings: Settings, flags: SparkFlags, demands: CheckpointDemands
) -> Iterator[SparkSession]:
    """A session whose own values of pinned settings are the checkpoint's, unless flags differ."""
    flags = cluster.resolve(flags)
    cluster.require_shared(flags.master, {"checkpoint": location})
    with session.open_session(
        "check",
        settings,
        master=flags.master,
        conf=flags.conf,
        wanted=demands.conf,
        locations=[location],
    ) as spark:
        yield spark


def _open_pipeline(
    spark: SparkSession, pipeline: Pipeline, settings: Settings, demands: CheckpointDemands
) -> DataStreamWriter:
    """A pipeline's query as `ebbtide run` would start it."""
    if pipeline.needs_broker and not settings.names_kafka:
        settings = settings.use_embedded(_NO_BROKER)
    with failures.plain_errors(pipeline), _guard(pipeline.name):
        source = connector_of(pipeline.source).open_source(pipeline, settings)
        rows = source.open_stream(spark, pipeline.query, None).rows
        result = rows if pipeline.scope == "batch" else pipeline.query(rows)
        sink = connector_of(pipeline.sink).open_sink(pipeline.sink, settings)
        writer = sink.open_writer(result, pipeline, demands.timeline)
        return writer.outputMode(pipeline.output_mode)


def call_build(spark: SparkSession, build: Build) -> DataFrame | DataStreamWriter:
    """Call a user's function with the session; refuse all but streaming rows or a writer."""
    name = getattr(build, "__name__", "The function")
    _require_one_argument(build, name)
    try:
        with _guard(name):
            result: Any = build(spark)
    except (EbbtideError, KeyboardInterrupt):
        raise
    except PySparkException as error:
        raise UsageError(f"{name}(spark) fails: {first_line(error)}.", "Fix it first.") from None
    except Exception as error:
        kind = type(error).__name__
        raise UsageError(
            f"{name}(spark) fails: {kind}: {first_line(error)}.", "Fix it first."
        ) from None
    if _is_stopped(spark):
        raise UsageError(f"{name}(spark) stops the session.", "Leave spark.stop() to the script.")
    if isinstance(result, DataStreamWriter):
        return result
    if isinstance(result, StreamingQuery):
        raise _starts_itself(name)
    if not isinstance(result, DataFrame):
        kind = "None" if result is None else type(result).__name__
        raise UsageError(
            f"{name}(spark) returns {kind}, not a streaming DataFrame.",
            "Return the DataFrame, or what .writeStream and its options give, before .start().",
        )
    if not result.isStreaming:
        raise UsageError(
            f"{name}(spark) returns a DataFrame that does not stream.",
            "Read its source with spark.readStream, not spark.read.",
        )
    return result


def _is_stopped(spark: SparkSession) -> bool:
    session = getattr(spark, "_jsparkSession", None)
    return session is not None and bool(session.sparkContext().isStopped())


def _require_one_argument(build: Build, name: str) -> None:
    try:
        inspect.signature(build).bind(object())
    except TypeError:
        raise UsageError(
            f"{name}{inspect.signature(build)} cannot be called with the Spark session alone.",
            f"Write a function of one argument: def build(spark): return {name}(spark, …)",
        ) from None
    except ValueError:  # a builtin has no signature
        return


@contextmanager
def _guard(name: str) -> Iterator[None]:
    """Refuse a start of a query, and an end of the program, while a user's code runs.

    What it prints goes to stderr: stdout is for the report.
    """

    def refuse(*_args: Any, **_options: Any) -> Any:
        raise _starts_itself(name)

    before = {method: getattr(DataStreamWriter, method) for method in ("start", "toTable")}
    for method in before:
        setattr(DataStreamWriter, method, refuse)
    try:
        with redirect_stdout(sys.stderr):
            yield
    except SystemExit:
        raise UsageError(f"{name} ends the program.", "Leave sys.exit() to the script.") from None
    finally:
        for method, own in before.items():
            setattr(DataStreamWriter, method, own)


def _starts_itself(name: str) -> UsageError:
    return UsageError(
        f"{name} starts the query itself.",
        "Return what .writeStream and its options give, and call .start() where the job runs.",
    )


def _read_held(
    spark: SparkSession, checkpoint: Checkpoint, demands: CheckpointDemands, query: PlannedQuery
) -> tuple[dict[int, HeldWindows], list[str]]:
    """The windows in the state, where the new query has the same operator; and why not."""
    held: dict[int, HeldWindows] = {}
    unread = []
    planned = {each.state.id: each.state.name for each in query.operators}
    for operator in demands.operators:
        if not operator.windows or planned.get(operator.id) != operator.name:
            continue
        windows, why = read_windows(spark, checkpoint, operator)
        if windows is None:
            unread.append(f"the length of the windows of operator {operator.id}: {why}")
        else:
            held[operator.id] = windows
    return held, unread


def _report(
    checkpoint: Checkpoint,
    demands: CheckpointDemands,
    query: PlannedQuery,
    held: dict[int, HeldWindows],
    unread: list[str],
) -> CompatibilityReport:
    parts = [*compare_sources.compare_sources(demands, query)]
    if query.refusal is None:
        parts += compare_state.compare_operators(demands, query, held)
        parts += compare.compare_settings(demands, query)
    parts += compare.compare_watermark(demands, query)
    parts += compare_output.compare_output_mode(demands, query, held)
    parts += compare_output.compare_sink(demands, query, checkpoint)
    unread = [*unread, *compare_output.list_unknown_drops(demands, query, held)]
    own = query.own_check
    if own is not None and not any(part.verdict == BREAKS for part in parts):
        parts.append(PartVerdict("Spark's own check", BREAKS, own, REFUSES))
    return CompatibilityReport(
        demands.location,
        demands.next_batch,
        query.spark,
        tuple(parts),
        tuple(_list_unchecked(query, unread)),
        tuple(list_ways_out(checkpoint, demands, query, parts)),
    ).mask()


def _report_missing(
    demands: CheckpointDemands, query: PlannedQuery, missing: str
) -> CompatibilityReport:
    """What can be said before there is a checkpoint: whether Spark starts such a query at all."""
    part = PartVerdict("checkpoint", COMPATIBLE, f"{missing}: the query starts with batch 0")
    refused = compare_output.find_refused_mode(query)
    unchecked = "all that a checkpoint shows: there is nothing to compare with"
    parts = (part, refused) if refused else (part,)
    return CompatibilityReport(demands.location, 0, query.spark, parts, (unchecked,)).mask()


def _list_unchecked(query: PlannedQuery, unread: list[str]) -> Iterator[str]:
    """What a checkpoint does not record, so that no comparison can see a change of it."""
    if query.operators:
        yield "the expressions behind keys, aggregates and join conditions, where types are equal"
    yield "filters, and the options of sources and sinks"
    if query.functions:
        yield f"the code of functions: {', '.join(query.functions)}"
    yield from unread
    if query.output_mode is None:
        yield "output mode and sink: the function returns rows, not a writer"


def list_ways_out(
    checkpoint: Checkpoint,
    demands: CheckpointDemands,
    query: PlannedQuery,
    parts: list[PartVerdict],
) -> Iterator[str]:
    """Lines to type, by what breaks: sources, or the state; none helps a query that cannot run."""
    if query.refusal is not None:
        return
    broken = [part for part in parts if part.verdict == BREAKS]
    place = quote(demands.location)
    if any(part.part.startswith("source") for part in broken):
        yield f"ebbtide offsets {place}   # the position, for a new query with a new checkpoint"
    elif state := [part for part in broken if part.part.startswith(_STATE_PARTS)]:
        if _can_fork(checkpoint, demands.next_batch):
            fork = f"ebbtide fork {place} NEW --at-batch {demands.next_batch} --offsets-only"
            yield f"{fork}   # go on from here with empty state"
        else:
            yield f"ebbtide offsets {place}   # the position, for a new query with empty state"
        # where types have changed, Spark compares them again even then
        if 0 in checkpoint.logs.by_id and all(part.spark == MISBINDS for part in state):
            yield f"ebbtide rewind {place} --to-batch 0   # compute the state again from the start"


def _can_fork(checkpoint: Checkpoint, batch: int) -> bool:
    """Whether all sources can begin at an offset without the batches before."""
    try:
        position = sources.read_position(checkpoint, batch)
    except EbbtideError:
        return False
    return all(source.can_fork for source in position.sources)
