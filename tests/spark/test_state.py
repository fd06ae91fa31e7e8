"""What a query remembers: read as it was written, compared both ways, and never touched."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ebbtide.checkpoint import Checkpoint, read_checkpoint
from ebbtide.errors import CheckpointError, UsageError
from ebbtide.state import decoders
from ebbtide.state.diff import ADDED, CHANGED, REMOVED, StateDiff, diff_state, summarize
from ebbtide.state.parts import StatePart, find_part, prefers_feed, require_state
from ebbtide.state.reading import StateEntries, plain_errors, read_state, take
from ebbtide.systems import register_decoders
from ebbtide.systems.early_writer.pipeline import pipeline
from ebbtide.testing import Rehearsal
from tests import cells
from tests.conftest import Cli
from tests.inside import inside  # noqa: F401
from tests.trees import snapshot

FILES = range(4)
BEFORE = 1
"""From the state after this batch to that after the last one."""


def sum_all(streams: list[DataFrame]) -> DataFrame:
    """One row for all: a state without a key, with numbers of many digits and two counts."""
    exact = F.col("value").cast("decimal(28,18)") + F.expr("1e-18BD")
    return streams[0].agg(F.sum(exact), F.count("*"), F.count("id"), F.max("lag"))


def come_and_go(streams: list[DataFrame]) -> DataFrame:
    """A key that is there goes, one that is not comes: twice, and it is as it was."""
    import pandas as pd  # type: ignore[import-untyped]
    from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

    def follow(key: Any, rows: Iterator[Any], state: GroupState) -> Iterator[Any]:
        del rows
        if state.exists:
            state.remove()
        else:
            state.update((1,))
        yield pd.DataFrame({"key": [key[0]]})

    return (
        streams[0]
        .groupBy("key")
        .applyInPandasWithState(
            follow, "key STRING", "there INT", "update", GroupStateTimeout.NoTimeout
        )
    )


def keep_all(streams: list[DataFrame]) -> DataFrame:
    """Each kind of variable that transformWithState has, and timers."""
    from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

    class All(StatefulProcessor):
        def init(self, handle: StatefulProcessorHandle) -> None:
            self.handle = handle
            self.total = handle.getValueState("total", "total BIGINT")
            self.values = handle.getListState("values", "value BIGINT")
            self.by_lag = handle.getMapState("by_lag", "lag INT", "value BIGINT")

        def handleInputRows(  # noqa: N802
            self,
            key: Any,
            rows: Iterator[Any],
            timerValues: Any,  # noqa: ARG002, N803
        ) -> Iterator[Any]:
            import pandas as pd

            (total,) = self.total.get() or (0,)
            for frame in rows:
                for row in frame.itertuples():
                    total += int(row.value)
                    self.values.appendValue((int(row.value) % 3,))  # some come more than once
                    self.by_lag.updateValue((int(row.lag),), (int(row.value),))
                    self.handle.registerTimer(int(row.at.timestamp() * 1000) + 3_600_000)
            self.total.update((total,))
            yield pd.DataFrame({"key": [key[0]]})

        def handleExpiredTimer(  # noqa: N802
            self,
            key: Any,
            timerValues: Any,  # noqa: ARG002, N803
            expiredTimerInfo: Any,  # noqa: ARG002, N803
        ) -> Iterator[Any]:
            import pandas as pd

            yield pd.DataFrame({"key": [key[0]]})

        def close(self) -> None:
            pass

    return (
        streams[0]
        .withWatermark("at", cells.DELAY)
        .groupBy("key")
        .transformWithStateInPandas(All(), "key STRING", "Update", "EventTime")
    )


OURS = {
    "keyless": cells.Query(sum_all, "update", partitions=1),
    "come-and-go": cells.Query(come_and_go, "update"),
    "variables": cells.Query(keep_all, "update"),
}
SAMPLE = [
    ("hdfs", "aggregation"),
    ("changelog", "windowed"),
    ("v2", "deduplication"),
    ("hdfs", "join"),
    ("v2", "join"),
    ("changelog", "session"),
    ("rocksdb", "chained"),
    ("v2", "partitions"),
    ("changelog", "keyless"),
    ("hdfs", "come-and-go"),
    ("changelog", "variables"),
]
CHOSEN = (
    [
        (store, query)
        for query in (*cells.QUERIES, *OURS)
        for store in cells.STORES
        if cells.allowed(store, "tws" if query == "variables" else query)
    ]
    if os.environ.get("EBBTIDE_MATRIX") == "all"
    else SAMPLE
)
Make = Callable[[str, str], tuple[Path, cells.Ran]]


@pytest.fixture(scope="module")
def make(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Make]:
    """The checkpoint of a query over a store, and what the query wrote: run once."""
    known: dict[tuple[str, str], tuple[Path, cells.Ran]] = {}
    folder = tmp_path_factory.mktemp("state")
    cells.write_input(folder / "in", FILES)

    def of(store: str, query: str) -> tuple[Path, cells.Ran]:
        if (store, query) not in known:
            place = folder / f"{store}-{query}"
            known[store, query] = (place, cells.run(spark, query, store, folder / "in", place))
        return known[store, query]

    with pytest.MonkeyPatch.context() as patch:
        for name, query in OURS.items():
            patch.setitem(cells.QUERIES, name, query)
        yield of
    cells.forget_state(spark)


def parts_of(checkpoint: Checkpoint, store: str, query: str) -> list[StatePart]:
    if query == "join":
        if store == "hdfs":  # each side once
            return [find_part(checkpoint, side="left")]
        values = find_part(checkpoint, store="left-keyWithIndexToValue")
        return [find_part(checkpoint, side="right"), values]
    if query == "variables":
        named = [find_part(checkpoint, variable=n) for n in ("total", "values", "by_lag")]
        return [*named, find_part(checkpoint, timers=True)]
    return [find_part(checkpoint, operator.id) for operator in checkpoint.operators]


def difference(part: StatePart, old: StateEntries, new: StateEntries) -> Counter[str]:
    """What changed between two states that are known whole."""

    def say(*words: object) -> str:
        return json.dumps(words, sort_keys=True)

    if part.many:
        was, now = (Counter(say(e.key, e.value) for e in state.first) for state in (old, new))
        came, went = now - was, was - now
        return Counter({f"{ADDED} {row}": n for row, n in came.items()}) + Counter(
            {f"{REMOVED} {row}": n for row, n in went.items()}
        )
    before, after = ({say(e.key): (e.key, e.value) for e in s.first} for s in (old, new))
    assert (len(before), len(after)) == (old.count, new.count), "a key comes twice"
    found: Counter[str] = Counter()
    for text in {*before, *after}:
        key, value = after.get(text) or before[text]
        if text not in before:
            found[f"{ADDED} {say(key, value)}"] += 1
        elif text not in after:
            found[f"{REMOVED} {say(key, value)}"] += 1
        elif before[text] != after[text]:
            found[f"{CHANGED} {say(key, before[text][1], value)}"] += 1
    return found


def as_said(diff: StateDiff) -> Counter[str]:
    found: Counter[str] = Counter()
    for change in diff.first:
        values = [value for value in (change.old, change.new) if value is not None]
        found[f"{change.kind} {json.dumps([change.key, *values], sort_keys=True)}"] += 1
    assert sum(diff.counts.values()) == found.total()
    return found


@pytest.mark.parametrize(("store", "query"), CHOSEN, ids=["-".join(cell) for cell in CHOSEN])
def test_a_diff_is_the_difference_of_two_full_reads(
    store: str, query: str, make: Make, spark: SparkSession
) -> None:
    place, _ = make(store, query)
    before, folders = snapshot(place), sorted(place.rglob("*"))
    checkpoint = read_checkpoint(str(place))
    differences = 0
    for part in parts_of(checkpoint, store, query):
        last = require_state(checkpoint, part)
        old, new = (take(read_state(spark, checkpoint, part, n), 0) for n in (BEFORE, last))
        expected = difference(part, old, new)
        differences += expected.total()
        told = prefers_feed(checkpoint, part, BEFORE, last)
        assert told == (store != "rocksdb" and not (part.side or part.variable or part.timers))
        for feed in (False, True) if told else (False,):
            diff = diff_state(spark, checkpoint, part, BEFORE, last, feed=feed)
            assert as_said(summarize(diff, 0)) == expected, (part, feed)
    assert differences > 0
    assert (snapshot(place), sorted(place.rglob("*"))) == (before, folders)


@pytest.mark.parametrize(("store", "query"), [("hdfs", "aggregation"), ("v2", "partitions")])
def test_the_state_is_what_the_query_said_last(
    store: str, query: str, make: Make, spark: SparkSession
) -> None:
    place, ran = make(store, query)
    checkpoint = read_checkpoint(str(place))
    for batch in (BEFORE, max(ran.batches)):
        rows = [(number, row) for number, row in ran.rows if number <= batch]
        said = [tuple(row.values()) for row in cells.QUERIES[query].result(rows)]
        found = take(read_state(spark, checkpoint, find_part(checkpoint), batch), 0)
        kept = [(*entry.key.values(), *entry.value.values()) for entry in found.first]
        assert sorted(kept) == sorted(said)


def test_what_a_state_may_hold(make: Make, spark: SparkSession) -> None:
    place, _ = make("changelog", "keyless")
    checkpoint = read_checkpoint(str(place))
    (entry,) = take(read_state(spark, checkpoint, find_part(checkpoint), 0), 0).first
    assert entry.key == {}
    # every digit of a decimal, and each of two counts
    values = [row["value"] for row in cells._own(0)]
    assert entry.value == {
        "sum": f"{sum(values)}.{len(values):018}",
        "isEmpty": False,
        "count": len(values),
        "count_2": len(values),
        "max": 20,
    }


def test_variables_and_timers(make: Make, spark: SparkSession) -> None:
    place, ran = make("changelog", "variables")
    checkpoint = read_checkpoint(str(place))

    def read(where: str | None = None, **part: Any) -> list[Any]:
        rows = read_state(
            spark, checkpoint, find_part(checkpoint, **part), max(ran.batches), where=where
        )
        return [(entry.key, entry.value) for entry in take(rows, 0).first]

    rows = [row for number in FILES for row in cells._own(number) if row["key"] == "bob"]
    mine = "key.key = 'bob'"
    assert read(mine, variable="total") == [
        ({"key": "bob"}, {"total": sum(row["value"] for row in rows)})
    ]
    values = [value["value"] for _, value in read(mine, variable="values")]
    assert sorted(values) == sorted(row["value"] % 3 for row in rows)
    by_lag = {row["lag"]: row["value"] for row in rows}
    assert read(mine, variable="by_lag") == [
        ({"key": "bob", "map_key": {"lag": lag}}, {"value": by_lag[lag]}) for lag in by_lag
    ]
    assert list(by_lag) == [0, 10, 20]
    times = {value["expires"] for _, value in read(mine, timers=True)}
    assert times == {
        row["at"].replace("T07", "T08").replace("T06", "T07").replace("+00:00", ".000000Z")
        for row in rows
    }


def test_visits_of_the_early_writer(spark: SparkSession, run: Cli, tmp_path: Path) -> None:
    def visit(id_: int | None, minute: int) -> dict[str, Any]:
        return {"visit_id": id_, "event_time": f"2025-09-04T07:{minute:02}:00", "page": "home"}

    with Rehearsal(pipeline, spark, tmp_path) as rehearsal:
        rehearsal.feed(visit(7, 0), visit(7, 1), visit(None, 2))
        rehearsal.feed(visit(7, 3), visit(8, 3))
    register_decoders()
    checkpoint = read_checkpoint(str(rehearsal.checkpoint))
    part = find_part(checkpoint)
    last = require_state(checkpoint, part)
    first = take(read_state(spark, checkpoint, part, 0), 0)
    assert {
        entry.key["id"]: (entry.value["pages"], entry.value["ends"]) for entry in first.first
    } == {
        7: (2, "2025-09-04T07:11:00.000000Z"),
        None: (1, "2025-09-04T07:12:00.000000Z"),
    }
    diff = summarize(diff_state(spark, checkpoint, part, 0, last), 0)
    assert {(c.kind, c.key["id"], (c.new or {}).get("pages")) for c in diff.first} >= {
        (ADDED, 8, 1),
        (CHANGED, 7, 3),
    }
    raw = take(read_state(spark, checkpoint, part, 0, raw=True), 0)
    assert set(raw.first[0].key) == {"bucket"}
    # the command registers the decoder itself
    decoders._REFERENCES.clear()
    shown = json.loads(run("show", rehearsal.checkpoint, "--batch", "0", "-o", "json").stdout)
    assert {row["key"]["id"]: row["value"]["pages"] for row in shown["rows"]} == {7: 2, None: 1}


def test_what_spark_cannot_read_is_said_in_a_line(
    make: Make, spark: SparkSession, tmp_path: Path
) -> None:
    place = shutil.copytree(make("hdfs", "aggregation")[0], tmp_path / "a copy")
    itself = read_checkpoint(str(place))
    with pytest.raises(CheckpointError, match=r"Spark's state reader cannot open .*ln -s '/"):
        require_state(itself, find_part(itself))
    (tmp_path / "link").symlink_to(place)
    checkpoint = read_checkpoint(str(tmp_path / "link"))
    part = find_part(checkpoint)
    assert take(read_state(spark, checkpoint, part, BEFORE), 1).count == 5

    def read() -> None:
        with plain_errors(checkpoint, part, BEFORE):
            take(read_state(spark, checkpoint, part, BEFORE), 1)

    (place / "state/0/0/1.delta").write_bytes(b"not a state")
    with pytest.raises(CheckpointError, match=r"Spark cannot read the state .*verify"):
        read()
    # cleaned up while we were reading
    for log in ("offsets", "commits"):
        (place / log / str(BEFORE)).unlink()
    with pytest.raises(CheckpointError, match="Batch 1 has no commit"):
        read()
    with pytest.raises(UsageError, match=r"key\.page.* Fields: key\.key, value\.sum"):
        read_state(spark, checkpoint, part, 3, where="key.page = 'home'")
    with pytest.raises(UsageError, match=r"value\.sum.* Fields: key\.key\."):
        diff_state(spark, checkpoint, part, 2, 3, where="value.sum > 3")


def test_the_commands_in_a_jvm_of_their_own(make: Make, cli: Cli, tmp_path: Path) -> None:
    """A session that never ran a stream: Spark lacks a part there that its reader asks for."""
    place, _ = make("v2", "join")
    said = cli(
        *("state", "show", place, "--side", "left", "--limit", "2", "--home", tmp_path),
        COLUMNS="80",
    )
    assert said.returncode == 0, said.stderr
    assert max(map(len, said.stdout.splitlines())) <= 80
    assert '{"field0":"ann"}' in said.stdout
    assert "Starting Spark" in said.stderr
    assert "2 of " in said.stderr


@pytest.fixture
def run(
    spark: SparkSession,
    inside: Cli,  # noqa: F811
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Cli:
    """The command line in this process and its JVM."""
    del spark
    monkeypatch.setattr("ebbtide.runtime.session.close_session", lambda _spark: None)
    monkeypatch.setenv("COLUMNS", "80")

    def call(*words: str | Path) -> Any:
        return inside("state", *words, "--home", tmp_path)

    return call


def test_tables_fit_and_json_and_csv_are_whole(make: Make, run: Cli) -> None:
    place, ran = make("changelog", "windowed")
    last = max(ran.batches)
    shown = run("diff", place, "--from", "1", "--limit", "3")
    assert shown.returncode == 0, shown.stderr
    assert max(map(len, shown.stdout.splitlines())) <= 80
    assert '"key":"' in shown.stdout
    assert f"The state after batch 1 and {last}" in shown.stderr
    assert "--limit 0 shows all" in shown.stderr

    whole = json.loads(run("diff", place, "--from", "1", "-o", "json", "--limit", "0").stdout)
    assert (whole["from"], whole["to"]) == (1, last)
    assert sum(whole["counts"].values()) == len(whole["changes"]) > 3
    lines = run("diff", place, "--from", "1", "-o", "csv", "--limit", "0").stdout
    rows = list(csv.DictReader(io.StringIO(lines)))
    assert len(rows) == len(whole["changes"])
    assert rows[0]["kind"] == ADDED
    assert (rows[0]["old.sum"], int(rows[0]["new.sum"]) > 0) == ("", True)

    some = run("show", place, "--batch", "1", "--where", "key.key = 'ann'", "-o", "json")
    found = json.loads(some.stdout)
    assert found["count"] == len(found["rows"]) > 0
    assert {row["key"]["key"] for row in found["rows"]} == {"ann"}
