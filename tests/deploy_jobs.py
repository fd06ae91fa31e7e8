"""Streaming jobs, and pairs of an old and a new version of each: what a deploy may change.

The input is that of `tests/cells.py`: five minutes a file, repeated rows, none too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tests.cells import CHANGELOG, DELAY, HDFS, ROCKSDB, STATE

Read = Callable[[str], DataFrame]
"""The stream of a folder's files, by its name."""
Build = Callable[[Read], DataFrame]
RIGHT, WRONG, REFUSES = "right", "wrong", "refuses"
TOTAL, ROWS = "sum(value) AS total", "count(*) AS rows"


@dataclass(frozen=True)
class Job:
    """One version of a job."""

    build: Build
    mode: str = "update"
    key: int = 1
    """How many of the first columns make up the key of a row, where a later one replaces it."""
    conf: Mapping[str, str] = field(default_factory=dict)
    sink: str = "foreach"
    """`foreach`, `memory`, or `files:NAME`: a folder, which may exist already."""


@dataclass(frozen=True)
class Deploy:
    """A new version that is started on the checkpoint of an old one."""

    name: str
    old: Job
    new: Job
    outcome: str
    """What Spark does: `right`, `wrong` or `refuses`."""
    outcome_35: str | None = None
    """On Spark 3.5, where that differs."""
    hidden: bool = False
    """Whether no checkpoint records what has changed: it must not be called the same."""
    hidden_35: bool = False
    """The same on Spark 3.5, which has no state reader."""
    partial: bool = False
    """Whether old and new rows have different columns: only the new ones are compared."""
    fresh: bool = False
    """Whether the truth is what the new job writes of the new files alone: it has no state."""
    since: str = "3.5"

    def expect(self, version: str) -> str:
        """What Spark of a version does."""
        return self.outcome_35 or self.outcome if version < "4" else self.outcome

    def is_hidden(self, version: str) -> bool:
        """Whether nothing shows the change to Spark of a version."""
        return self.hidden or (self.hidden_35 and version < "4")


def aggregate(
    *functions: str, by: tuple[str, ...] = ("key",), where: str = "true", factor: int = 0
) -> Build:
    """Running totals, in SQL; with a factor, of what a Python function multiplies."""
    chosen = functions or (TOTAL,)

    def build(read: Read) -> DataFrame:
        rows = read("in").filter(where)
        if factor:
            times = F.udf(lambda number: number * factor, "int")
            rows = rows.withColumn("value", times("value"))
        return rows.groupBy(*map(F.expr, by)).agg(*map(F.expr, chosen))

    return build


def windows(
    length: str = "10 minutes", slide: str | None = None, delay: str | None = DELAY
) -> Build:
    """Totals of each window and key."""

    def build(read: Read) -> DataFrame:
        rows = read("in")
        rows = rows.withWatermark("at", delay) if delay else rows
        sums = rows.groupBy(F.window("at", length, slide), "key").agg(F.sum("value").alias("total"))
        return sums.select("window.start", "window.end", "key", "total")

    return build


def sessions(gap: str) -> Build:
    """Totals of each session."""

    def build(read: Read) -> DataFrame:
        rows = read("in").filter("lag = 0").withWatermark("at", DELAY)
        sums = rows.groupBy(F.session_window("at", gap), "key").agg(F.sum("value").alias("total"))
        return sums.select("session_window.start", "session_window.end", "key", "total")

    return build


def distinct(*keys: str, within: bool = False) -> Build:
    """Each row once."""

    def build(read: Read) -> DataFrame:
        rows = read("in").withWatermark("at", DELAY)
        once = rows.dropDuplicatesWithinWatermark if within else rows.dropDuplicates
        return once(list(keys)).select("id", "key", "at")

    return build


def distinct_windows(*, first: bool, then: bool) -> Build:
    """Totals of windows, with repeated rows dropped before, repeated totals after, or neither."""

    def build(read: Read) -> DataFrame:
        rows = read("in").withWatermark("at", DELAY)
        rows = rows.dropDuplicates(["id", "at"]) if first else rows
        sums = rows.groupBy(F.window("at", "10 minutes"), "key").agg(F.sum("value").alias("total"))
        sums = sums.dropDuplicates(["window", "key"]) if then else sums
        return sums.select("window.start", "key", "total")

    return build


def join(
    key: str = "key", minutes: int = 30, more: tuple[str, ...] = (), name: str = "other_id"
) -> Build:
    """Each row with those of some minutes before and after."""

    def build(read: Read) -> DataFrame:
        left, right = (
            read("in").filter("lag = 10").withWatermark("at", DELAY).select("id", key, "at", *more)
            for _ in range(2)
        )
        right = right.select(
            F.col("id").alias(name), F.col(key).alias("other"), F.col("at").alias("other_at")
        )
        near = f"INTERVAL {minutes} MINUTES"
        condition = f"{key} = other AND other_at BETWEEN at - {near} AND at + {near}"
        return left.join(right, F.expr(condition)).select("id", name, *more)

    return build


def union(*folders: str) -> Build:
    """Totals over several sources."""

    def build(read: Read) -> DataFrame:
        rows = read(folders[0])
        for folder in folders[1:]:
            rows = rows.unionByName(read(folder))
        return rows.groupBy("key").agg(F.sum("value").alias("total"))

    return build


def rows(*columns: str, where: str = "true") -> Build:
    """Rows without state."""
    return lambda read: read("in").filter(where).selectExpr(*columns)


def by_hand(schema: str = "total BIGINT", factor: int = 1) -> Build:
    """Totals that Python code keeps, with applyInPandasWithState."""

    def build(read: Read) -> DataFrame:
        def add(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
            import pandas as pd  # type: ignore[import-untyped]

            old = int(state.get[0]) if state.exists else 0
            total = old + factor * sum(int(frame["value"].sum()) for frame in frames)
            kept = str(total) if "STRING" in schema else total
            state.update((kept, *([0] if "," in schema else [])))
            yield pd.DataFrame({"key": [key[0]], "total": [total]})

        return (
            read("in")
            .groupBy("key")
            .applyInPandasWithState(add, "key STRING, total BIGINT", schema, "update", "NoTimeout")
        )

    return build


def with_variables(
    names: tuple[str, ...] = ("sums",),
    schema: str = "total BIGINT",
    *,
    listed: bool = False,
    time: str = "None",
) -> Build:
    """Totals that Python code keeps, with transformWithState."""

    def build(read: Read) -> DataFrame:
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Sums(StatefulProcessor):  # type: ignore[misc, unused-ignore]
            def init(self, handle: Any) -> None:
                make = handle.getListState if listed else handle.getValueState
                self.states = [make(name, schema) for name in names]

            def handleInputRows(  # noqa: N802
                self,
                key: Any,
                rows: Iterator[Any],
                timerValues: Any,  # noqa: ARG002, N803
            ) -> Iterator[Any]:
                import pandas as pd

                added = sum(int(frame["value"].sum()) for frame in rows)
                state, *_ = self.states
                if listed:
                    total = added + sum(int(one[0]) for one in state.get())
                    state.put([(total,)])
                else:
                    total = added + int((state.get() or (0,))[0])
                    state.update((str(total) if "STRING" in schema else total,))
                yield pd.DataFrame({"key": [key[0]], "total": [total]})

            def close(self) -> None:
                pass

        grouped = read("in").select("key", "value").groupBy("key")
        return grouped.transformWithStateInPandas(
            Sums(), "key STRING, total BIGINT", "Update", time
        )

    return build


TOTALS = Job(aggregate())
BOTH = (TOTAL, ROWS)
WINDOWS = Job(windows(), key=3)
CLOSED = Job(windows(), "append", key=3)
PAIRED = Job(aggregate(by=("key", "id")), key=2)
ONCE = Job(distinct("id", "at"), "append")
JOINED = Job(join(), "append", key=2)
HANDMADE = Job(by_hand())
ON_ROCKS = {**ROCKSDB, f"{STATE}rocksdb.changelogCheckpointing.enabled": "false"}
FORMAT = f"{STATE}checkpointFormatVersion"
VARIABLES = Job(with_variables(), conf=ON_ROCKS)
FLAT = Job(rows("id", "value"), "append")
DEDUPED = Job(distinct_windows(first=True, then=False), "append", key=2)
FILES = Job(rows("id", "value"), "append", sink="files:old")


def _deploys() -> Iterator[Deploy]:
    yield Deploy("nothing changed", TOTALS, TOTALS, RIGHT)
    yield from _keys_and_values()
    yield from _windows_and_watermarks()
    yield from _operators()
    yield from _sources_and_settings()
    yield from _output()
    yield from _with_code()


def _keys_and_values() -> Iterator[Deploy]:
    def changed(name: str, outcome: str, *functions: Any, **options: Any) -> Deploy:
        flags = {n: options.pop(n) for n in ("hidden", "partial") if n in options}
        return Deploy(name, TOTALS, Job(aggregate(*functions, **options)), outcome, **flags)

    yield changed("output column renamed", RIGHT, "sum(value) AS sum")
    yield changed("key renamed", RIGHT, by=("key AS who",))
    yield changed("key is another column", WRONG, by=("id",), partial=True)
    yield changed("key of another type", REFUSES, by=("value",))
    yield changed("key added", REFUSES, by=("key", "lag"))
    yield changed("key computed", WRONG, by=("upper(key) AS key",), hidden=True)
    yield Deploy("keys swapped", PAIRED, Job(aggregate(by=("id", "key")), key=2), WRONG)
    yield changed("aggregate added", REFUSES, *BOTH)
    yield Deploy("aggregate removed", Job(aggregate(*BOTH)), TOTALS, REFUSES)
    swapped = Job(aggregate(*reversed(BOTH)))
    yield Deploy("aggregates swapped", Job(aggregate(*BOTH)), swapped, REFUSES)
    yield changed("sum becomes count", WRONG, "count(value) AS total")
    yield changed("sum becomes sum of doubles", REFUSES, "sum(value * 1.5D) AS total")
    yield changed("sum of another column", WRONG, "sum(lag) AS total", hidden=True)
    yield changed("filter before an aggregation", WRONG, where="value % 2 = 0", hidden=True)
    yield changed("function in an aggregate", WRONG, factor=2, hidden=True)


def _windows_and_watermarks() -> Iterator[Deploy]:
    yield Deploy("windows unchanged", WINDOWS, WINDOWS, RIGHT)
    shorter = Job(windows("5 minutes"), key=3)
    yield Deploy("window length", WINDOWS, shorter, WRONG, hidden_35=True)
    sliding = Job(windows("10 minutes", "5 minutes"), key=3)
    yield Deploy("windows slide", WINDOWS, sliding, REFUSES)
    wide, narrow = (
        Job(windows("20 minutes", slide), key=3) for slide in ("10 minutes", "5 minutes")
    )
    yield Deploy("windows slide by less", wide, narrow, WRONG, hidden_35=True)
    longer = Job(windows(delay="60 minutes"), key=3)
    yield Deploy("watermark delay", WINDOWS, longer, RIGHT)
    without = Job(windows(delay=None), key=3)
    yield Deploy("watermark removed", WINDOWS, without, RIGHT)
    yield Deploy("watermark added", without, WINDOWS, RIGHT)
    no_mark = Job(windows(delay=None), "append", key=3)
    yield Deploy("watermark removed, append", CLOSED, no_mark, REFUSES)
    short, long = (Job(sessions(gap), "append", key=3) for gap in ("7 minutes", "12 minutes"))
    yield Deploy("sessions unchanged", short, short, RIGHT)
    yield Deploy("session gap", short, long, WRONG, hidden_35=True)


def _operators() -> Iterator[Deploy]:
    plain = Job(distinct_windows(first=False, then=False), "append", key=2)
    after = Job(distinct_windows(first=False, then=True), "append", key=2)
    yield Deploy("operator added", plain, DEDUPED, REFUSES)
    yield Deploy("operator removed", DEDUPED, plain, REFUSES, WRONG)
    yield Deploy("operators reordered", DEDUPED, after, REFUSES)
    yield Deploy("operator replaced", TOTALS, ONCE, REFUSES)
    flat = Job(rows("key", "value"), "append")
    yield Deploy("state removed", TOTALS, flat, REFUSES, RIGHT, partial=True, fresh=True)
    yield Deploy("state added", flat, TOTALS, REFUSES)
    yield Deploy("deduplication unchanged", ONCE, ONCE, RIGHT)
    yield Deploy(
        "deduplication by another type", ONCE, Job(distinct("value", "at"), "append"), REFUSES
    )
    yield Deploy(
        "deduplication by another column", ONCE, Job(distinct("key", "at"), "append"), WRONG
    )
    within = Job(distinct("id", within=True), "append")
    yield Deploy("deduplication within the watermark", ONCE, within, REFUSES)
    yield Deploy("join unchanged", JOINED, JOINED, RIGHT)
    yield Deploy("join column renamed", JOINED, Job(join(name="that_id"), "append", key=2), RIGHT)
    yield Deploy("join column added", JOINED, Job(join(more=("value",)), "append"), REFUSES)
    yield Deploy("join by another type", JOINED, Job(join("lag"), "append", key=2), REFUSES)
    near = Job(join(minutes=5), "append", key=2)
    yield Deploy("join condition", JOINED, near, RIGHT, hidden=True, partial=True)


def _sources_and_settings() -> Iterator[Deploy]:
    two, swapped = Job(union("in", "other")), Job(union("other", "in"))
    yield Deploy("source added", TOTALS, two, REFUSES)
    yield Deploy("source removed", two, TOTALS, REFUSES)
    yield Deploy("sources swapped", two, swapped, REFUSES)
    yield Deploy("another folder", TOTALS, Job(union("other")), REFUSES)
    partitions = Job(aggregate(), conf={"spark.sql.shuffle.partitions": "5"})
    yield Deploy("partition count", TOTALS, partitions, RIGHT)
    yield Deploy(
        "state provider", Job(aggregate(), conf=HDFS), Job(aggregate(), conf=ROCKSDB), RIGHT
    )
    rocks = Job(aggregate(), conf=ON_ROCKS)
    yield Deploy("changelog", rocks, Job(aggregate(), conf=CHANGELOG), RIGHT)
    newer = Job(aggregate(), conf={**CHANGELOG, FORMAT: "2"})
    older = Job(aggregate(), conf={**CHANGELOG, FORMAT: "1"})
    yield Deploy("state format lowered", newer, older, REFUSES, since="4.0")
    yield Deploy("state format raised", older, newer, REFUSES, since="4.0")


def _output() -> Iterator[Deploy]:
    complete = Job(windows(), "complete", key=3)
    yield Deploy("update becomes append", WINDOWS, CLOSED, RIGHT)
    yield Deploy("append becomes update", CLOSED, WINDOWS, WRONG, hidden=True)
    yield Deploy("complete becomes update", complete, WINDOWS, RIGHT)
    yield Deploy("update becomes complete", WINDOWS, complete, WRONG, hidden=True)
    yield Deploy("mode that is not allowed", TOTALS, Job(aggregate(), "append"), REFUSES)
    yield Deploy(
        "filter of rows",
        FLAT,
        Job(rows("id", "value", where="value > 20"), "append"),
        RIGHT,
        fresh=True,
    )
    renamed = Job(rows("id AS name", "value"), "append")
    yield Deploy("column renamed", FLAT, renamed, RIGHT, fresh=True)
    files = Job(rows("id", "value"), "append", sink="files:new")
    yield Deploy("sink becomes files", FLAT, files, REFUSES)
    yield Deploy("files go elsewhere", FILES, files, REFUSES)
    yield Deploy("files become functions", FILES, FLAT, RIGHT, fresh=True)
    used = Job(rows("id", "value"), "append", sink="files:used")
    yield Deploy("files of another query", FILES, used, WRONG, fresh=True)
    yield Deploy(
        "files with update", FLAT, Job(rows("id", "value"), "update", sink="files:new"), REFUSES
    )
    yield Deploy(
        "sink becomes memory", FLAT, Job(rows("id", "value"), "append", sink="memory"), REFUSES
    )


def _with_code() -> Iterator[Deploy]:
    def groups(name: str, new: Job, outcome: str, **more: Any) -> Deploy:
        # of Spark 3.5, pyspark's own code fails with the pyarrow of today
        return Deploy(name, HANDMADE, new, outcome, since="4.0", **more)

    yield groups("groups unchanged", HANDMADE, RIGHT)
    yield groups("state of groups", Job(by_hand("total STRING")), REFUSES)
    yield groups("state of groups grows", Job(by_hand("total BIGINT, rows BIGINT")), REFUSES)
    yield groups("code of groups", Job(by_hand(factor=3)), WRONG, hidden=True)

    def variables(*words: Any, **options: Any) -> Job:
        return Job(with_variables(*words, **options), conf=ON_ROCKS)

    def deploy(name: str, new: Job, outcome: str, **more: Any) -> Deploy:
        return Deploy(name, VARIABLES, new, outcome, since="4.0", **more)

    yield deploy("variables unchanged", VARIABLES, RIGHT)
    yield deploy("variable added", variables(("sums", "more")), RIGHT)
    yield deploy("variable renamed", variables(("other",)), WRONG)
    yield deploy("type of a variable", variables(schema="total STRING"), REFUSES)
    yield deploy("variable becomes a list", variables(listed=True), REFUSES)
    yield deploy("time mode", variables(time="ProcessingTime"), REFUSES)


DEPLOYS = {deploy.name: deploy for deploy in _deploys()}
