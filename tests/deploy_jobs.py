"""Pairs of an old and a new version of streaming jobs: what a deploy may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from tests.cells import CHANGELOG, HDFS, ROCKSDB, STATE
from tests.deploy_queries import (
    ROWS,
    TOTAL,
    Build,
    aggregate,
    by_hand,
    chained_windows,
    distinct,
    distinct_windows,
    join,
    moved,
    pair,
    rows,
    sessions,
    twice,
    union,
    union_named,
    windows,
    with_variables,
    without_later,
    zoneless_windows,
)

RIGHT, WRONG, REFUSES = "right", "wrong", "refuses"


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
    once: bool = False
    """Whether it reads all in one batch: with timers, Spark would never end."""
    fails: bool = False
    """Whether it fails when its first batch ends."""


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
    truth: Job | None = None
    """Whose results from scratch are right, if not those of the new job."""
    since: str = "3.5"

    def expect(self, version: str) -> str:
        """What Spark of a version does."""
        return self.outcome_35 or self.outcome if version < "4" else self.outcome

    def is_hidden(self, version: str) -> bool:
        """Whether nothing shows the change to Spark of a version."""
        return self.hidden or (self.hidden_35 and version < "4")


TOTALS = Job(aggregate())
BOTH = (TOTAL, ROWS)
WINDOWS = Job(windows(), key=3)
CLOSED = Job(windows(), "append", key=3)
PAIRED = Job(aggregate(by=("key", "id")), key=2)
ONCE = Job(distinct("id", "at"), "append")
JOINED = Job(join(), "append", key=2)
HANDMADE = Job(by_hand())
ON_ROCKS = {**ROCKSDB, f"{STATE}rocksdb.changelogCheckpointing.enabled": "false"}
IN_AVRO = {**ON_ROCKS, f"{STATE}encodingFormat": "avro"}
FORMAT = f"{STATE}checkpointFormatVersion"
BY_ID = {"spark.sql.streaming.offsetLog.formatVersion": "2"}
BY_NAME = {**BY_ID, "spark.sql.streaming.queryEvolution.enableSourceEvolution": "true"}
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
    yield from _first_batch()
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
    sure = Job(aggregate(by=("coalesce(key, 'none') AS key",)))
    yield Deploy("key may be null", sure, TOTALS, REFUSES)
    yield Deploy("key is never null", TOTALS, sure, RIGHT)
    nested, renamed = (Job(aggregate(by=(f"struct(key AS {name}) AS one",))) for name in "ab")
    yield Deploy("field in a key renamed", nested, renamed, RIGHT)
    yield changed("no key any more", REFUSES, by=())
    alone = Job(aggregate(by=()), key=0)
    yield Deploy("without keys, unchanged", alone, alone, RIGHT)
    yield Deploy("key where there was none", alone, TOTALS, REFUSES)
    two = ("sum(value) AS total", "sum(lag) AS lags")
    yield Deploy(
        "sums swapped",
        Job(aggregate(*two)),
        Job(aggregate(*reversed(two))),
        WRONG,
        hidden=True,
        partial=True,
    )
    most, least = (Job(aggregate(f"{name}(value) AS one")) for name in ("max", "min"))
    yield Deploy("max becomes min", most, least, WRONG)
    unique, every = (
        Job(aggregate(f"size(collect_{name}(lag)) AS one")) for name in ("set", "list")
    )
    yield Deploy("set becomes list", unique, every, WRONG, hidden=True)
    spread, deviation = (
        Job(aggregate(f"round({name}(value), 6) AS one"), "complete")
        for name in ("var_pop", "stddev_pop")
    )
    yield Deploy("variance becomes deviation", spread, deviation, RIGHT)
    fine, finer = (
        Job(aggregate(f"sum(CAST(value AS DECIMAL({digits}, 2))) AS total")) for digits in (10, 12)
    )
    yield Deploy("decimals with more digits", fine, finer, REFUSES)


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
    yield Deploy("shorter session gap", long, short, WRONG, hidden=True)
    yield Deploy("sessions become windows", short, CLOSED, REFUSES)
    yield Deploy("windows become sessions", CLOSED, short, REFUSES)
    shifted = Job(windows(start="5 minutes"), key=3)
    yield Deploy("windows begin later", WINDOWS, shifted, WRONG, hidden_35=True)
    yield Deploy("windows slide by more", narrow, wide, WRONG, hidden_35=True)
    moved = Job(windows(folder="other"), key=3)
    yield Deploy("another folder after no files", WINDOWS, moved, RIGHT, truth=WINDOWS)
    zone = {"spark.sql.session.timeZone": "Asia/Kathmandu"}
    ten, five = (
        Job(zoneless_windows(length), key=2, conf=zone) for length in ("10 minutes", "5 minutes")
    )
    yield Deploy("windows without a zone", ten, ten, RIGHT)
    yield Deploy("length of windows without a zone", ten, five, WRONG, hidden_35=True)
    hours = Job(windows("1 hour"), key=3)
    yield Deploy("windows in a zone", replace(hours, conf=zone), replace(hours, conf=zone), RIGHT)
    chain = Job(chained_windows("5 minutes", "20 minutes"), "append", key=3)
    yield Deploy("chained windows unchanged", chain, chain, RIGHT)
    outer = Job(chained_windows("5 minutes", "10 minutes"), "append", key=3)
    yield Deploy("length of the outer windows", chain, outer, WRONG, hidden_35=True)
    inner = Job(chained_windows("10 minutes", "20 minutes"), "append", key=3)
    yield Deploy("length of the inner windows", chain, inner, WRONG, hidden_35=True)
    yield Deploy("chained windows become one", chain, CLOSED, REFUSES)
    yield Deploy("windows become chained", CLOSED, chain, REFUSES)


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
    delayed = Job(distinct("id", "at", delay="60 minutes"), "append")
    yield Deploy("deduplication with another delay", ONCE, delayed, RIGHT)
    yield Deploy("deduplication reordered", ONCE, Job(distinct("at", "id"), "append"), REFUSES)
    texts = Job(distinct("id", "key"), "append")
    yield Deploy(
        "deduplication by texts reordered", texts, Job(distinct("key", "id"), "append"), WRONG
    )
    five = ("id", "key", "at", "value", "lag")
    many, turned = (Job(distinct(*each), "append") for each in (five, tuple(reversed(five))))
    yield Deploy("deduplication by five reordered", many, turned, RIGHT)
    yield Deploy("deduplication within, unchanged", within, within, RIGHT)
    yield Deploy("deduplication not within any more", within, ONCE, REFUSES)
    yield from _joins()


def _joins() -> Iterator[Deploy]:
    outer = Job(join(how="left"), "append", key=2)
    yield Deploy("left join unchanged", outer, outer, RIGHT)
    # an inner join drops rows without a time, so that Spark takes the column for never null
    yield Deploy("inner join becomes left", JOINED, outer, REFUSES)
    yield Deploy("left join becomes inner", outer, JOINED, RIGHT)
    forever = Job(join(delay=None), "append", key=2)
    yield Deploy("join without watermarks", JOINED, forever, REFUSES)
    pairs = Job(pair(), "append", key=2)
    yield Deploy("join of unlike sides", pairs, pairs, RIGHT)
    yield Deploy("join with its sides swapped", pairs, Job(pair(turned=True), "append"), WRONG)
    yield Deploy(
        "join by another column", pairs, Job(pair(by="value"), "append"), WRONG, hidden=True
    )
    names = ("key", "id", "value", "n", "at")
    yield Deploy("join columns reordered", pairs, Job(pair(*names), "append"), WRONG)


def _sources_and_settings() -> Iterator[Deploy]:
    two, swapped = Job(union("in", "other")), Job(union("other", "in"))
    yield Deploy("source added", TOTALS, two, REFUSES)
    yield Deploy("source removed", two, TOTALS, REFUSES)
    yield Deploy("sources swapped", two, swapped, REFUSES)
    yield Deploy("another folder", TOTALS, Job(union("other")), REFUSES)
    yield Deploy("folder by a pattern", TOTALS, Job(aggregate(path="in/*.json")), RIGHT)
    yield Deploy("parent folder", TOTALS, Job(aggregate(path=".")), WRONG)
    below = Job(aggregate(path=".", deep=True))
    yield Deploy("parent folder with subfolders", TOTALS, below, RIGHT)
    pattern = Job(moved("other", "other/*"))
    yield Deploy("another folder by a pattern", TOTALS, pattern, RIGHT, truth=TOTALS)
    yield from _shared_sources()
    yield from _named_sources()
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


def _shared_sources() -> Iterator[Deploy]:
    doubled, apart = Job(twice()), Job(union("in", "in"))
    yield Deploy("source read twice", doubled, doubled, RIGHT)
    more = Job(twice("other"))
    yield Deploy("source read twice, and another", more, more, RIGHT)
    yield Deploy("source read twice becomes once", doubled, TOTALS, REFUSES)
    yield Deploy("source read twice becomes two", doubled, apart, REFUSES)
    yield Deploy("two sources become one read twice", apart, doubled, RIGHT)


def _named_sources() -> Iterator[Deploy]:
    """Offsets of format v2, which Spark 4.2 writes on request."""

    def deploy(name: str, old: Job, new: Job, outcome: str, **more: Any) -> Deploy:
        return Deploy(name, old, new, outcome, since="4.2", **more)

    one, two, turned = (
        Job(union(*folders), conf=BY_ID) for folders in (("in",), ("in", "other"), ("other", "in"))
    )
    rest = Job(without_later("other"))
    yield deploy("sources by id", two, two, RIGHT)
    yield deploy("source by id added", one, two, RIGHT)
    yield deploy("source by id removed", two, one, RIGHT, truth=rest)
    yield deploy("sources by id swapped", two, turned, REFUSES)
    yield deploy("offset format raised", TOTALS, one, RIGHT)
    yield deploy("offset format lowered", one, TOTALS, RIGHT)
    alone, both, reverse, renamed = (
        Job(union_named(**folders), conf=BY_NAME)
        for folders in (
            {"left": "in"},
            {"left": "in", "right": "other"},
            {"right": "other", "left": "in"},
            {"left": "in", "new": "other"},
        )
    )
    yield deploy("named sources", both, both, RIGHT)
    yield deploy("named source added", alone, both, RIGHT)
    yield deploy("named source removed", both, alone, RIGHT, truth=rest)
    yield deploy("named sources swapped", both, reverse, RIGHT)
    yield deploy("named source renamed", both, renamed, WRONG)
    yield deploy("names of sources removed", both, two, REFUSES)
    yield deploy("sources get names", TOTALS, alone, REFUSES)


def _first_batch() -> Iterator[Deploy]:
    """The old job has planned its first batch, and failed."""
    failed = replace(TOTALS, fails=True)

    def deploy(name: str, new: Job, outcome: str, outcome_35: str | None = None) -> Deploy:
        return Deploy(f"batch 0 failed, {name}", failed, new, outcome, outcome_35)

    yield deploy("nothing changed", TOTALS, RIGHT)
    yield deploy("key of another type", Job(aggregate(by=("value",))), REFUSES)
    yield deploy("key is another column", Job(aggregate(by=("id",))), RIGHT)
    yield deploy("sum becomes count", Job(aggregate("count(value) AS total")), RIGHT)
    yield deploy("operator replaced", ONCE, REFUSES)
    yield deploy("operator added", DEDUPED, REFUSES)
    yield deploy("state removed", FLAT, RIGHT)
    yield deploy("source added", Job(union("in", "other")), REFUSES)
    yield deploy("another folder", Job(union("other")), REFUSES)


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
    more = variables(("sums", "more"))
    yield Deploy("variable removed", more, VARIABLES, RIGHT, since="4.0")
    yield deploy("type of a variable grows", variables(schema="total BIGINT, rows INT"), REFUSES)
    clocked, living = (
        replace(variables(time="ProcessingTime", lives=lives), once=True) for lives in (False, True)
    )
    yield Deploy("variable gets a time to live", clocked, living, REFUSES, since="4.0")
    closing = replace(variables(mode="Append"), mode="append")
    yield deploy("output mode of variables", closing, REFUSES)
    yield Deploy("variables by rows", VARIABLES, variables(by_row=True), REFUSES, since="4.1")
    avro, grown = (
        Job(with_variables(schema=schema), conf=IN_AVRO)
        for schema in ("total BIGINT", "total BIGINT, rows INT")
    )
    yield Deploy("variable in Avro grows", avro, grown, RIGHT, since="4.0")


DEPLOYS = {deploy.name: deploy for deploy in _deploys()}
