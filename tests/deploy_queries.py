"""The queries that the jobs of `tests/deploy_jobs.py` run, each as a function of what it reads.

The input is that of `tests/cells.py`: five minutes a file, repeated rows, none too late.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from tests.cells import DELAY

BEFORE, ALL = range(8), range(12)
"""The files that the old job reads, and those that there are in the end."""
LATER = range(BEFORE.stop, ALL.stop)
Read = Callable[..., DataFrame]
"""The stream of a folder's files, by its name."""
Build = Callable[[Read], DataFrame]
TOTAL, ROWS = "sum(value) AS total", "count(*) AS rows"


def aggregate(
    *functions: str,
    by: tuple[str, ...] = ("key",),
    where: str = "true",
    factor: int = 0,
    path: str = "",
    deep: bool = False,
) -> Build:
    """Running totals, in SQL; with a factor, of what a Python function multiplies."""
    chosen = functions or (TOTAL,)

    def build(read: Read) -> DataFrame:
        rows = read("in", path=path, deep=deep).filter(where)
        if factor:
            times = F.udf(lambda number: number * factor, "int")
            rows = rows.withColumn("value", times("value"))
        return rows.groupBy(*map(F.expr, by)).agg(*map(F.expr, chosen))

    return build


def windows(
    length: str = "10 minutes",
    slide: str | None = None,
    delay: str | None = DELAY,
    start: str | None = None,
    folder: str = "in",
) -> Build:
    """Totals of each window and key; of another folder, only the later files are read."""

    def build(read: Read) -> DataFrame:
        rows = read(folder) if folder == "in" else read(folder, only=LATER)
        rows = rows.withWatermark("at", delay) if delay else rows
        window = F.window("at", length, slide or (length if start else None), start)
        sums = rows.groupBy(window, "key").agg(F.sum("value").alias("total"))
        return sums.select("window.start", "window.end", "key", "total")

    return build


def zoneless_windows(length: str) -> Build:
    """Totals of each window of a clock on the wall."""

    def build(read: Read) -> DataFrame:
        rows = read("in").withColumn("at", F.col("at").cast("timestamp_ntz"))
        sums = rows.groupBy(F.window("at", length), "key").agg(F.sum("value").alias("total"))
        return sums.select("window.start", "key", "total")

    return build


def chained_windows(inner: str, outer: str) -> Build:
    """How many windows with rows there are in a longer one."""

    def build(read: Read) -> DataFrame:
        rows = read("in").withWatermark("at", DELAY)
        sums = rows.groupBy(F.window("at", inner), "key").agg(F.sum("value").alias("total"))
        sums = sums.groupBy(F.window("window", outer), "key").agg(F.count("*").alias("rows"))
        return sums.select("window.start", "window.end", "key", "rows")

    return build


def sessions(gap: str) -> Build:
    """Totals of each session."""

    def build(read: Read) -> DataFrame:
        rows = read("in").filter("lag = 0").withWatermark("at", DELAY)
        sums = rows.groupBy(F.session_window("at", gap), "key").agg(F.sum("value").alias("total"))
        return sums.select("session_window.start", "session_window.end", "key", "total")

    return build


def distinct(*keys: str, within: bool = False, delay: str = DELAY) -> Build:
    """Each row once."""

    def build(read: Read) -> DataFrame:
        rows = read("in").withWatermark("at", delay)
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
    key: str = "key",
    minutes: int = 30,
    more: tuple[str, ...] = (),
    name: str = "other_id",
    how: str = "inner",
    delay: str | None = DELAY,
) -> Build:
    """Each row with those of some minutes before and after."""

    def build(read: Read) -> DataFrame:
        left, right = (read("in").filter("lag = 10") for _ in range(2))
        if delay:
            left, right = left.withWatermark("at", delay), right.withWatermark("at", delay)
        left = left.select("id", key, "at", *more)
        right = right.select(
            F.col("id").alias(name), F.col(key).alias("other"), F.col("at").alias("other_at")
        )
        near = f"INTERVAL {minutes} MINUTES"
        condition = f"{key} = other AND other_at BETWEEN at - {near} AND at + {near}"
        return left.join(right, F.expr(condition), how).select("id", name, *more)

    return build


def pair(*columns: str, by: str = "n", turned: bool = False) -> Build:
    """Each fresh row with the late ones of its key, from either side."""
    chosen = columns or ("id", "key", "value", "n", "at")

    def build(read: Read) -> DataFrame:
        # a join tells Spark that some columns are not null: here, none is in any case
        whole = " AND ".join(f"{column} IS NOT NULL" for column in chosen)
        fresh, late = (
            read("in").filter(f"lag = {lag} AND {whole}").withWatermark("at", DELAY).select(*chosen)
            for lag in (0, 10)
        )
        late = late.select(*(F.col(column).alias(f"late_{column}") for column in late.columns))
        near = "late_at BETWEEN at - INTERVAL 15 MINUTES AND at + INTERVAL 15 MINUTES"
        condition = F.expr(f"{by} = late_{by} AND {near}")
        both = late.join(fresh, condition) if turned else fresh.join(late, condition)
        names = ("id", "key", "value", "n")
        return both.select(*names, *(f"late_{name}" for name in names))

    return build


def union(*folders: str) -> Build:
    """Totals over several sources."""

    def build(read: Read) -> DataFrame:
        rows = read(folders[0])
        for folder in folders[1:]:
            rows = rows.unionByName(read(folder))
        return rows.groupBy("key").agg(F.sum("value").alias("total"))

    return build


def union_named(**folders: str) -> Build:
    """Totals over several sources, each of which has a name."""

    def build(read: Read) -> DataFrame:
        streams = [read(folder, called=name) for name, folder in folders.items()]
        rows = streams[0]
        for stream in streams[1:]:
            rows = rows.unionByName(stream)
        return rows.groupBy("key").agg(F.sum("value").alias("total"))

    return build


def twice(*more: str) -> Build:
    """Totals over a source that is read in two places, and others."""

    def build(read: Read) -> DataFrame:
        once = read("in")
        rows = once.unionByName(once)
        for folder in more:
            rows = rows.unionByName(read(folder))
        return rows.groupBy("key").agg(F.sum("value").alias("total"))

    return build


def moved(folder: str, path: str) -> Build:
    """Totals over the later files, which are in another folder."""

    def build(read: Read) -> DataFrame:
        rows = read(folder, path=path, only=LATER)
        return rows.groupBy("key").agg(F.sum("value").alias("total"))

    return build


def without_later(folder: str) -> Build:
    """Totals over a source, and what there was at first in another one."""

    def build(read: Read) -> DataFrame:
        rows = read("in").unionByName(read(folder, only=BEFORE))
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
    mode: str = "Update",
    lives: bool = False,
    by_row: bool = False,
) -> Build:
    """Totals that Python code keeps, with transformWithState; of rows instead of pandas frames."""

    def build(read: Read) -> DataFrame:
        from pyspark.sql import Row
        from pyspark.sql.streaming.stateful_processor import StatefulProcessor

        class Sums(StatefulProcessor):  # type: ignore[misc, unused-ignore]
            def init(self, handle: Any) -> None:
                make = handle.getListState if listed else handle.getValueState
                more = (3_600_000,) if lives else ()
                self.states = [make(name, schema, *more) for name in names]

            def handleInputRows(  # noqa: N802
                self,
                key: Any,
                rows: Iterator[Any],
                timerValues: Any,  # noqa: ARG002, N803
            ) -> Iterator[Any]:
                import pandas as pd

                if by_row:
                    added = sum(row["value"] for row in rows)
                else:
                    added = sum(int(frame["value"].sum()) for frame in rows)
                state, *_ = self.states
                if listed:
                    total = added + sum(int(one[0]) for one in state.get())
                    state.put([(total,)])
                else:
                    total = added + int((state.get() or (0,))[0])
                    kept = str(total) if "STRING" in schema else total
                    state.update((kept, *([None] if "," in schema else [])))
                if by_row:
                    yield Row(key=key[0], total=total)
                else:
                    yield pd.DataFrame({"key": [key[0]], "total": [total]})

            def close(self) -> None:
                pass

        grouped = read("in").select("key", "value").groupBy("key")
        transform = grouped.transformWithState if by_row else grouped.transformWithStateInPandas
        return transform(Sums(), "key STRING, total BIGINT", mode, time)

    return build
