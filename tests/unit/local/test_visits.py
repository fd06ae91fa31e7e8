from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.local.visits import BROKEN_SHAPES, VisitGenerator, pace


def all_of(plan: VisitGenerator) -> list[dict[str, Any]]:
    return [message for chunk in plan.messages() for message in chunk]


@settings(max_examples=30)
@given(
    st.integers(0, 3_000),
    st.integers(1, 200),
    st.integers(1, 60),
    st.sampled_from([0.0, 0.1, 0.5]),
    st.integers(0, 2**32),
)
def test_the_same_seed_gives_the_same_events(
    count: int, users: int, pages: int, share: float, seed: int
) -> None:
    plan = VisitGenerator(count, users, pages, late=share, broken=share, seed=seed)
    events = all_of(plan)
    assert events == all_of(plan)
    assert len(events) == count


def test_another_seed_gives_other_events() -> None:
    assert all_of(VisitGenerator(count=50, seed=1)) != all_of(VisitGenerator(count=50, seed=2))


def test_events_are_visits() -> None:
    events = [
        json.loads(m["value"]) for m in all_of(VisitGenerator(count=5_000, users=10, pages=8))
    ]
    assert events[0].keys() == {"event_id", "visit_id", "event_time", "page"}
    assert len({event["page"] for event in events}) == 8
    assert len({event["event_id"] for event in events}) == 5_000
    assert events[0]["event_time"] == "2024-01-01T01:00:00Z"
    minutes = [event["event_time"][:16] for event in events]
    assert minutes == sorted(minutes)


def test_visits_may_be_named_by_text() -> None:
    wishes: dict[str, Any] = {"count": 300, "users": 7, "late": 0.1, "broken": 0.1, "seed": 3}
    named, numbered = (
        all_of(VisitGenerator(**wishes, text_ids=True)),
        all_of(VisitGenerator(**wishes)),
    )
    assert named == all_of(VisitGenerator(**wishes, text_ids=True))
    (source,) = {message["key"].rpartition(b"_")[0] for message in named}
    assert len(source) == 15
    for with_text, without in zip(named, numbered, strict=True):
        assert with_text["key"] == source + b"_" + without["key"]
        if not _is_visit(without["value"]):
            assert with_text["value"] == without["value"]
            continue
        event = json.loads(with_text["value"])
        assert event["visit_id"] == with_text["key"].decode()
        assert {**event, "visit_id": int(without["key"])} == json.loads(without["value"])


def test_shares_are_kept() -> None:
    count = 20_000
    late = all_of(VisitGenerator(count=count, users=1_000, late=0.1))
    newest, behind = "", 0
    for message in late:
        at = json.loads(message["value"])["event_time"]
        behind += at[:13] < newest[:13]
        newest = max(newest, at)
    assert 0.08 < behind / count < 0.12
    shapes = {make(7) for make in BROKEN_SHAPES.values() if make(7) is not None}
    broken = [
        m for m in all_of(VisitGenerator(count=count, broken=0.25)) if not _is_visit(m["value"])
    ]
    assert 0.23 < len(broken) / count < 0.27
    assert len(shapes) == len(BROKEN_SHAPES) - 1


def _is_visit(value: bytes | None) -> bool:
    if b'{"a":{"a":' in (value or b""):  # too deep, though not for every Python's parser
        return False
    try:
        found = json.loads(value or b"")
    except ValueError:
        return False
    return isinstance(found, dict) and isinstance(found.get("event_time"), str)


def test_pace_holds_the_rate() -> None:
    chunks = list(VisitGenerator(count=3_000).messages())
    started = time.monotonic()
    passed = [m for part in pace(chunks, per_second=10_000) for m in part]
    assert passed == [m for chunk in chunks for m in chunk]
    # it may be slower on a busy machine, never faster than the rate less its last slice
    assert time.monotonic() - started >= 0.19


@pytest.mark.parametrize(
    "wrong", [{"late": 1.5}, {"broken": -0.1}, {"users": 0}, {"pages": 0}, {"count": -1}]
)
def test_wrong_wishes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"--{next(iter(wrong))}"):
        VisitGenerator(**wrong)
