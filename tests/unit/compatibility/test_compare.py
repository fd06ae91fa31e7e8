"""What is said of each change, with plain values in the place of Spark."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ebbtide.checks import (
    BREAKS,
    COMPATIBLE,
    GOES_ON,
    IGNORES,
    MISBINDS,
    REFUSES,
    SAME,
    PartVerdict,
)
from ebbtide.compatibility.compare import compare_settings, compare_watermark
from ebbtide.compatibility.compare_output import compare_output_mode, list_unknown_drops
from ebbtide.compatibility.compare_sources import compare_sources, find_folders
from ebbtide.compatibility.compare_state import compare_operators
from ebbtide.compatibility.demands import CheckpointDemands, SourceDemand
from ebbtide.compatibility.operators import AGGREGATION, DEDUPLICATION, JOIN, OperatorState
from ebbtide.compatibility.planned import Column, PlannedOperator, PlannedQuery, TimeWindow
from ebbtide.compatibility.schemas import StateSchema
from ebbtide.compatibility.windows import HeldWindows
from ebbtide.connectors.kafka.changed import recognize_topics
from ebbtide.connectors.streams import LastRead, StreamRead
from tests.unit.compatibility.test_schemas import structure


def source(kind: str, *names: str, **more: Any) -> SourceDemand:
    return SourceDemand(kind, last=LastRead(names), **more)


MINUTE = 60_000_000
KEY, VALUE = structure(("key", "string")), structure(("sum", "long"))
OPERATOR = OperatorState(0, AGGREGATION, (StateSchema("default", KEY, VALUE),))
OLD = CheckpointDemands("/ckpt", 7, (source("kafka", "visits"),), (OPERATOR,), {}, 2, 0, "origin")
VISITS = StreamRead("kafka", ("visits",))


def planned(*states: OperatorState, **more: Any) -> PlannedQuery:
    columns = more.pop("columns", (Column("key", "key"),))
    operators = tuple(PlannedOperator(state, columns) for state in states)
    return PlannedQuery("4.2.0", (VISITS,), operators, partitions=2, **more)


def verdicts(parts: Iterator[PartVerdict]) -> list[tuple[str, str, str]]:
    return [(part.part, part.verdict, part.spark) for part in parts]


def with_schema(key: Any = KEY, value: Any = VALUE) -> OperatorState:
    return replace(OPERATOR, schemas=(StateSchema("default", key, value),))


def window_key(delay_ms: int = 0) -> dict[str, Any]:
    span = structure(("start", "timestamp"), ("end", "timestamp"))
    (field,) = structure(("window", span))["fields"]
    metadata = {"spark.timeWindow": True, "spark.watermarkDelayMs": delay_ms}
    return {"type": "struct", "fields": [{**field, "metadata": metadata}]}


@pytest.mark.parametrize(
    ("new", "verdict", "spark", "detail"),
    [
        (VISITS, SAME, "goes on", "kafka visits"),
        (StreamRead("kafka", ("clicks",)), BREAKS, REFUSES, "visits is not read any more"),
        (StreamRead("kafka", ("clicks", "visits")), COMPATIBLE, "goes on", "clicks is new"),
        (StreamRead("kafka", (), pattern="vis.*"), SAME, "goes on", "kafka"),
        (StreamRead("kafka", (), pattern="click.*"), BREAKS, REFUSES, "visits is not read"),
        (StreamRead("kafka", ("x",), may_lose_data=True), BREAKS, MISBINDS, "visits is not read"),
        (StreamRead("files", ("/in",)), BREAKS, REFUSES, "kafka visits becomes files /in"),
    ],
    ids=str,
)
def test_topics(new: StreamRead, verdict: str, spark: str, detail: str) -> None:
    (part,) = compare_sources(OLD, replace(planned(OPERATOR), sources=(new,)))
    assert (part.verdict, part.spark) == (verdict, spark)
    assert detail in part.detail


@pytest.mark.parametrize(
    ("assigned", "options", "verdict", "spark", "detail"),
    [
        ("[0, 1]", {}, SAME, GOES_ON, "topic visits"),
        ("[0]", {}, BREAKS, REFUSES, "visits-1 is not read any more"),
        ("[0]", {"failOnDataLoss": "false"}, COMPATIBLE, IGNORES, "visits-1 is left out"),
        ("[0, 1, 2]", {}, COMPATIBLE, GOES_ON, "visits-2 is new"),
    ],
    ids=str,
)
def test_assigned_partitions(
    assigned: str, options: dict[str, str], verdict: str, spark: str, detail: str
) -> None:
    old = replace(OLD, sources=(source("kafka", "visits", offset='{"visits":{"0":5,"1":7}}'),))
    read = recognize_topics({"assign": f'{{"visits": {assigned}}}', **options})
    (part,) = compare_sources(old, replace(planned(OPERATOR), sources=(read,)))
    assert (part.verdict, part.spark) == (verdict, spark)
    assert detail in part.detail


def test_swapped_and_missing_sources() -> None:
    old = replace(OLD, sources=(source("kafka", "a"), source("kafka", "b")))
    swapped = replace(planned(), sources=(StreamRead("kafka", ("b",)), StreamRead("kafka", ("a",))))
    parts = list(compare_sources(old, swapped))
    assert [part.verdict for part in parts] == [BREAKS, BREAKS]
    assert "the order has changed" in parts[0].detail
    assert verdicts(compare_sources(old, planned())) == [("sources", BREAKS, REFUSES)]


def by_id(*sources: SourceDemand, has_names: bool = False) -> CheckpointDemands:
    """Offsets of format v2, whose order says nothing."""
    return replace(OLD, sources=sources, finds_by_id=True, has_names=has_names)


def test_sources_of_format_v2_are_found_by_their_positions() -> None:
    old = by_id(source("kafka", "b", id="1"), source("kafka", "a", id="0"))
    one, two, three = (StreamRead("kafka", (name,)) for name in "abc")
    same = compare_sources(old, replace(planned(), sources=(one, two)))
    assert [(part.part, part.verdict) for part in same] == [("source 0", SAME), ("source 1", SAME)]
    swapped = compare_sources(old, replace(planned(), sources=(two, one)))
    assert {part.verdict for part in swapped} == {BREAKS}
    *_, added = compare_sources(old, replace(planned(), sources=(one, two, three)))
    assert (added.verdict, added.detail) == (
        COMPATIBLE,
        "kafka c is new, and read from its beginning",
    )
    *_, removed = compare_sources(old, replace(planned(), sources=(one,)))
    assert (removed.part, removed.verdict, removed.spark) == ("source 1", COMPATIBLE, IGNORES)


def test_sources_of_format_v2_may_have_names() -> None:
    old = by_id(source("files", "/b", id="right"), source("files", "/a", id="left"), has_names=True)
    left, right = (
        StreamRead("files", (folder,), called=name, folder=name)
        for folder, name in (("/a", "left"), ("/b", "right"))
    )
    same = compare_sources(old, replace(planned(), sources=(left, right)))
    assert verdicts(same) == [("source left", SAME, GOES_ON), ("source right", SAME, GOES_ON)]
    renamed = replace(right, called="other", folder="other")
    parts = list(compare_sources(old, replace(planned(), sources=(left, renamed))))
    assert ("source other", BREAKS, MISBINDS) in verdicts(iter(parts))
    assert "Call it right" in {part.next for part in parts}
    nameless = replace(planned(), sources=(left, replace(right, called="")))
    assert verdicts(compare_sources(old, nameless)) == [("sources", BREAKS, REFUSES)]


def test_a_source_that_is_read_in_two_places_has_one_folder() -> None:
    two = (source("files", "/a", id="0"), source("files", "/a", id="1"))
    read = StreamRead("files", ("/a",), folder="0")
    new = replace(planned(), sources=(read, replace(read)))
    assert find_folders(replace(OLD, sources=two), new) == {"1": "0"}
    # format v2 keeps one offset of it
    (part,) = compare_sources(by_id(two[1]), new)
    assert (part.part, part.verdict) == ("source 1", SAME)


@pytest.mark.parametrize(
    ("folder", "read", "verdict"),
    [
        ("/in", "/in", SAME),
        ("file:/in/", "/in", SAME),
        ("/in", "/in/day", BREAKS),
        ("/in", "/in/day=1/hour=2", COMPATIBLE),
        ("/in/{a,b}", "/in/b", COMPATIBLE),
        ("/in/[a-c]", "/in/b", COMPATIBLE),
        ("/in/*.json", "/in", COMPATIBLE),
        ("/in/*", "/in/day", COMPATIBLE),
        ("/in/*/x", "/in/day/x", COMPATIBLE),
        ("/in", "/in/a /in/b", BREAKS),
        ("/in/a", "/in/a /in/b", BREAKS),
        ("/in/a", "/in", BREAKS),
        ("/out", "/in", BREAKS),
        ("/out/*", "/in", COMPATIBLE),
    ],
)
def test_folders(folder: str, read: str, verdict: str) -> None:
    """Spark wants all files of the last batch in the folder, and lists no subfolders."""
    names = tuple(f"file://{each}" for each in read.split())
    old = replace(OLD, sources=(source("files", *names),))
    new = replace(planned(OPERATOR), sources=(StreamRead("files", (folder,)),))
    (part,) = compare_sources(old, new)
    assert part.verdict == verdict
    if folder == "/in/a":
        assert part.detail.startswith(f"{names[-1]} becomes /in/a, where")
    if read.startswith("/in/") and part.spark == MISBINDS:
        deep = replace(new, sources=(StreamRead("files", (folder,), is_deep=True),))
        assert [part.verdict for part in compare_sources(old, deep)] == [COMPATIBLE]


@pytest.mark.parametrize(
    ("state", "part", "spark"),
    [
        (with_schema(key=structure(("key", "long"))), "operator 0 key", REFUSES),
        (with_schema(value=structure(("max", "long"))), "operator 0 value", MISBINDS),
        (with_schema(value=structure(("sum", "double"))), "operator 0 value", REFUSES),
        (replace(OPERATOR, name=DEDUPLICATION), "operator 0", REFUSES),
    ],
    ids=str,
)
def test_state_that_does_not_fit(state: OperatorState, part: str, spark: str) -> None:
    new = planned(state, own_check="refused")
    parts = [each for each in compare_operators(OLD, new, {}) if each.verdict == BREAKS]
    assert [(each.part, each.spark) for each in parts] == [(part, spark)]


def test_a_key_of_the_same_type_is_never_the_same() -> None:
    parts = {part.part: part for part in compare_operators(OLD, planned(OPERATOR), {})}
    assert parts["operator 0"].verdict == SAME
    assert parts["operator 0 key"].verdict == COMPATIBLE
    assert "not recorded" in parts["operator 0 key"].detail


@pytest.mark.parametrize(
    ("column", "sources", "verdict"),
    [
        (Column("who", "key"), "key id", COMPATIBLE),
        (Column("who", "id"), "key id", BREAKS),
        (Column("who", "id"), "id", COMPATIBLE),
        (Column("who"), "key", COMPATIBLE),
    ],
    ids=str,
)
def test_a_renamed_key(column: Column, sources: str, verdict: str) -> None:
    state = with_schema(key=structure(("who", "string")))
    new = planned(state, columns=(column,), source_columns=frozenset(sources.split()))
    (part,) = (p for p in compare_operators(OLD, new, {}) if p.part == "operator 0 key")
    assert part.verdict == verdict


@pytest.mark.parametrize(
    ("made_of", "choices", "verdict"),
    [
        ("country json value", "key country", BREAKS),
        ("country json value", "country", COMPATIBLE),
        ("country key value", "key country", COMPATIBLE),
        ("", "key country", COMPATIBLE),
    ],
)
def test_a_key_that_is_another_computed_column(made_of: str, choices: str, verdict: str) -> None:
    """As in groupBy("country") for groupBy("key"), both of which from_json has made."""
    state = with_schema(key=structure(("country", "string")))
    column = Column("country", None, frozenset(made_of.split()))
    new = planned(state, columns=(column,), key_choices=frozenset(choices.split()))
    (part,) = (p for p in compare_operators(OLD, new, {}) if p.part == "operator 0 key")
    assert part.verdict == verdict


def test_an_operator_of_unknown_kind_is_not_the_same() -> None:
    old = replace(OLD, operators=(OperatorState(0, None, (), is_guess=True),))
    (part,) = compare_operators(old, planned(OPERATOR), {})
    assert part.verdict == COMPATIBLE
    assert part.detail.endswith("is not known")


def test_operators_added_and_removed() -> None:
    second = replace(OPERATOR, id=1, name=DEDUPLICATION)
    added = compare_operators(OLD, planned(OPERATOR, second), {})
    assert ("operator 1", BREAKS, REFUSES) in verdicts(added)
    two = replace(OLD, operators=(OPERATOR, second))
    removed = compare_operators(two, planned(OPERATOR), {})
    assert ("operator 1", BREAKS, REFUSES) in verdicts(removed)


@pytest.mark.parametrize("version", ["3.5.9", "4.2.0"])
def test_operators_may_change_before_a_batch_is_committed(version: str) -> None:
    first = replace(OLD, next_batch=0)
    second = replace(OPERATOR, id=1, name=DEDUPLICATION)
    two = replace(first, operators=(OPERATOR, second))
    other = replace(OPERATOR, name=DEDUPLICATION)
    for old, new in (
        (first, planned(OPERATOR, second)),
        (two, planned(OPERATOR)),
        (first, planned(other)),
    ):
        parts = list(compare_operators(old, replace(new, spark=version), {}))
        assert BREAKS not in {part.verdict for part in parts}
        assert any("no batch is committed yet" in part.detail for part in parts)


def test_a_schema_is_compared_even_before_a_batch_is_committed() -> None:
    new = planned(with_schema(key=structure(("key", "long"))))
    first = replace(OLD, next_batch=0)
    for query in (replace(new, spark="3.5.9"), replace(new, own_check="refused")):
        parts = verdicts(compare_operators(first, query, {}))
        assert ("operator 0 key", BREAKS, REFUSES) in parts
    assert BREAKS not in {part.verdict for part in compare_operators(first, new, {})}


def test_spark_35_does_not_notice_a_removed_operator() -> None:
    first, second = (replace(OPERATOR, id=id_, is_guess=True) for id_ in (0, 1))
    two = replace(OLD, operators=(first, second))
    old_spark = replace(planned(first), spark="3.5.9")
    assert ("operator 1", BREAKS, MISBINDS) in verdicts(compare_operators(two, old_spark, {}))
    alone = replace(planned(), spark="3.5.9")
    parts = list(compare_operators(two, alone, {}))
    assert {part.verdict for part in parts} == {COMPATIBLE}
    # but it compares the state of those that are left
    other = replace(with_schema(value=structure(("sum", "double"))), is_guess=True)
    parts = list(compare_operators(two, replace(planned(other), spark="3.5.9"), {}))
    assert ("operator 0 value", BREAKS, REFUSES) in verdicts(iter(parts))


def test_a_join_whose_sides_are_swapped() -> None:
    def make(left: str, right: str) -> OperatorState:
        schemas = (
            StateSchema(f"{side}-keyWithIndexToValue", KEY, structure((name, "string")))
            for side, name in (("left", left), ("right", right))
        )
        return OperatorState(0, JOIN, tuple(schemas))

    old = replace(OLD, operators=(make("a", "b"),))
    swapped = compare_operators(old, planned(make("b", "a")), {})
    assert ("operator 0 sides", BREAKS, MISBINDS) in verdicts(swapped)
    same = compare_operators(old, planned(make("a", "b")), {})
    assert BREAKS not in {part.verdict for part in same}


@pytest.mark.parametrize(
    ("spans", "new", "misfit"),
    [
        ([(0, 10)], TimeWindow("window", 10 * MINUTE, 10 * MINUTE), None),
        ([(0, 10)], TimeWindow("window", 5 * MINUTE, 5 * MINUTE), "windows of 10 minutes become"),
        ([(5, 15)], TimeWindow("window", 10 * MINUTE, 10 * MINUTE), "do not begin where"),
        ([(5, 15)], TimeWindow("window", 10 * MINUTE, 10 * MINUTE, 5 * MINUTE), None),
        (
            [(0, 10), (10, 20), (20, 30), (30, 40)],
            TimeWindow("window", 10 * MINUTE, 5 * MINUTE),
            "windows every 10 minutes become windows every 5 minutes",
        ),
        ([(0, 10), (5, 15)], TimeWindow("window", 10 * MINUTE, 5 * MINUTE), None),
        ([], TimeWindow("window", 5 * MINUTE, 5 * MINUTE), None),
    ],
    ids=str,
)
def test_windows_in_the_state(
    spans: list[tuple[int, int]], new: TimeWindow, misfit: str | None
) -> None:
    held = HeldWindows(0, "window", tuple((a * MINUTE, b * MINUTE) for a, b in spans))
    found = held.explain_misfit(new)
    assert found is None if misfit is None else misfit in str(found)


@pytest.mark.parametrize(
    ("count", "detail"), [(2, "the 2 in the state slide is not known"), (4, "as are the 4")]
)
def test_few_windows_do_not_show_how_they_slide(count: int, detail: str) -> None:
    state = with_schema(key=window_key())
    spans = tuple((n * 5 * MINUTE, (n * 5 + 10) * MINUTE) for n in range(count))
    window = TimeWindow("window", 10 * MINUTE, 5 * MINUTE)
    new = replace(planned(), operators=(PlannedOperator(state, (), (window,)),))
    old = replace(OLD, operators=(state,))
    parts = list(compare_operators(old, new, {0: HeldWindows(0, "window", spans)}))
    assert parts[-1].verdict == COMPATIBLE
    assert detail in parts[-1].detail


def test_a_longer_gap_is_seen_and_a_shorter_one_not() -> None:
    held = HeldWindows(0, "session", ((0, 7 * MINUTE), (0, 9 * MINUTE)))
    assert "gap becomes 8 minutes" in str(held.explain_misfit(TimeWindow("session", 8 * MINUTE)))
    assert held.explain_misfit(TimeWindow("session", 5 * MINUTE)) is None


def test_settings_of_the_session_are_ignored() -> None:
    provider = "spark.sql.streaming.stateStore.providerClass"
    old = replace(OLD, conf={provider: "org.apache.spark.X"})
    new = replace(planned(OPERATOR), conf={provider: "org.apache.spark.Y"}, partitions=5)
    parts = list(compare_settings(old, new))
    assert verdicts(iter(parts)) == [
        ("partitions", COMPATIBLE, IGNORES),
        ("settings", COMPATIBLE, IGNORES),
    ]
    assert parts[1].detail == "stateStore.providerClass stays X; Y has no effect"


def test_the_format_of_state_must_be_that_of_the_checkpoint() -> None:
    parts = list(compare_settings(replace(OLD, has_state_ids=True), planned(OPERATOR)))
    assert ("state format", BREAKS, REFUSES) in verdicts(iter(parts))
    assert parts[-1].next.endswith("checkpointFormatVersion=2")


def test_spark_43_takes_the_format_of_state_from_the_checkpoint() -> None:
    new = replace(planned(OPERATOR), spark="4.3.0")
    parts = compare_settings(replace(OLD, has_state_ids=True), new)
    assert ("state format", COMPATIBLE, IGNORES) in verdicts(parts)


@pytest.mark.parametrize(
    ("watermark_ms", "now", "verdict", "detail"),
    [
        (5, {}, COMPATIBLE, "removed"),
        (0, {"at": 60_000}, COMPATIBLE, "1 minute after the latest event, added"),
        (5, {"at": 60_000}, COMPATIBLE, "the earlier delay is not recorded"),
    ],
    ids=str,
)
def test_watermarks(watermark_ms: int, now: dict[str, int], verdict: str, detail: str) -> None:
    old = replace(OLD, watermark_ms=watermark_ms)
    (part,) = compare_watermark(old, replace(planned(OPERATOR), watermarks=now))
    assert part.verdict == verdict
    assert detail in part.detail


@pytest.mark.parametrize(
    ("column", "verdict", "detail"),
    [("at", SAME, "1 minute; "), ("seen", COMPATIBLE, "; of seen, in the state of at")],
)
def test_a_watermark_of_another_column_is_not_the_same(
    column: str, verdict: str, detail: str
) -> None:
    metadata = {"spark.watermarkDelayMs": 60_000}
    (field,) = structure(("at", "timestamp"))["fields"]
    state = with_schema(key={"type": "struct", "fields": [{**field, "metadata": metadata}]})
    new = replace(planned(state), watermarks={column: 60_000})
    (part,) = compare_watermark(replace(OLD, operators=(state,)), new)
    assert part.verdict == verdict
    assert detail in part.detail


def test_the_column_of_windows_is_not_recorded() -> None:
    state = with_schema(key=window_key(60_000))
    new = replace(planned(state), watermarks={"at": 60_000})
    (part,) = compare_watermark(replace(OLD, operators=(state,)), new)
    assert part.verdict == COMPATIBLE
    assert part.detail.endswith("; of at, and the earlier column is not recorded")


WINDOWED = with_schema(key=window_key())


@pytest.mark.parametrize(
    ("dropped_ms", "spans", "known"),
    [
        (0, [(0, 10)], True),
        (300_000, [(0, 10)], False),
        (900_000, [(0, 10)], True),
        (900_000, [(10, 20)], False),
        (900_000, None, False),
    ],
)
def test_complete_may_lack_windows_that_were_dropped(
    dropped_ms: int, spans: list[tuple[int, int]] | None, known: bool
) -> None:
    """Only a window that outlives the watermark shows that the mode was complete before."""
    old = replace(OLD, operators=(WINDOWED,), watermark_ms=900_000, dropped_ms=dropped_ms)
    pairs = tuple((a * MINUTE, b * MINUTE) for a, b in spans or ())
    held = {} if spans is None else {0: HeldWindows(0, "window", pairs)}
    new = replace(planned(WINDOWED), output_mode="complete")
    (part,) = compare_output_mode(old, new, held)
    assert part.verdict == COMPATIBLE
    unknown = " ".join(list_unknown_drops(old, new, held))
    assert ("not known whether windows were dropped" in unknown) is not known
    other = replace(new, output_mode="update")
    assert not list(list_unknown_drops(old, other, held))


@pytest.mark.parametrize(
    ("before", "now", "dropped_ms", "verdict", "says"),
    [
        ("append", "append", 0, SAME, "append"),
        ("append", "update", 0, BREAKS, "never written unless further rows of it come"),
        ("append", "complete", 0, COMPATIBLE, "append becomes complete"),
        ("update", "complete", 900_000, BREAKS, "before 1970-01-01T00:15:00.000Z is not in"),
        ("update", "append", 900_000, COMPATIBLE, "written again when the watermark passes it"),
        ("complete", "update", 900_000, COMPATIBLE, "complete becomes update"),
    ],
)
def test_an_earlier_output_mode_that_was_noted(
    before: str, now: str, dropped_ms: int, verdict: str, says: str
) -> None:
    old = replace(OLD, operators=(WINDOWED,), dropped_ms=dropped_ms, output_mode=before)
    new = replace(planned(WINDOWED), output_mode=now)
    (part,) = compare_output_mode(old, new, {})
    assert part.verdict == verdict
    assert says in part.detail
    assert not list(list_unknown_drops(old, new, {}))
    stateless = replace(old, operators=())
    (part,) = compare_output_mode(stateless, new, {})
    assert part.verdict == (SAME if before == now else COMPATIBLE)
