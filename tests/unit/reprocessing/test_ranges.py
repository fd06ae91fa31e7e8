"""Widening and cutting: no window is cut, none is owned twice, all that is needed is read."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbtide.errors import UsageError
from ebbtide.reprocessing.ranges import EventTimeRange, Shape, cut, needed_input, whole_results

EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
MINUTES = st.integers(-500, 500).map(lambda n: EPOCH + timedelta(seconds=30 * n))
SPANS = st.tuples(MINUTES, st.integers(1, 300)).map(
    lambda s: EventTimeRange(s[0], s[0] + timedelta(seconds=30 * s[1]))
)


@st.composite
def windows(draw: st.DrawFn) -> Shape:
    slide = draw(st.integers(1, 30))
    size = slide + draw(st.sampled_from([0, 0, 1, 7, 60]))
    offset = draw(st.integers(0, slide - 1))
    minute = timedelta(minutes=1)
    return Shape("windowed", size * minute, slide * minute, offset * minute)


def starts(shape: Shape, near: EventTimeRange) -> list[datetime]:
    """Every window start from well before a span to well after it."""
    first = (near.start - shape.size - EPOCH) // shape.slide - 2
    last = (near.end - EPOCH) // shape.slide + 2
    return [EPOCH + shape.offset + shape.slide * n for n in range(first, last + 1)]


@given(SPANS, windows())
def test_exactly_the_windows_that_overlap_the_range(asked: EventTimeRange, shape: Shape) -> None:
    owned = whole_results(asked, shape)
    for start in starts(shape, asked):
        overlaps = start < asked.end and start + shape.size > asked.start
        assert (owned.start <= start < owned.end) == overlaps


@given(SPANS, windows(), st.integers(1, 40).map(lambda n: timedelta(minutes=n)))
def test_each_window_is_in_one_chunk_that_reads_all_of_it(
    asked: EventTimeRange, shape: Shape, length: timedelta
) -> None:
    chunks = cut(whole_results(asked, shape), shape, length)
    assert [chunk.number for chunk in chunks] == list(range(1, len(chunks) + 1))
    for start in starts(shape, asked):
        if start < asked.end and start + shape.size > asked.start:
            (owner,) = [c for c in chunks if c.owns.start <= start < c.owns.end]
            assert owner.reads.start <= start
            assert owner.reads.end >= start + shape.size


def test_an_aligned_range_stays_as_it_is() -> None:
    ten = timedelta(minutes=10)
    asked = EventTimeRange(EPOCH, EPOCH + ten)
    shape = Shape("windowed", ten, ten)
    assert whole_results(asked, shape) == asked
    assert needed_input(asked, shape) == asked


def test_a_range_of_a_month_has_at_most_24_chunks_a_day_or_a_week_long() -> None:
    month = EventTimeRange(EPOCH, EPOCH + timedelta(days=30))
    assert len(cut(month, Shape("stateless"))) == 5
    assert len(cut(EventTimeRange(EPOCH, EPOCH + timedelta(days=20)), Shape("stateless"))) == 20


def test_clocks_that_change_do_not_change_the_chunks() -> None:
    warsaw = ZoneInfo("Europe/Warsaw")
    start, end = (datetime(2026, 3, 29, hour, tzinfo=warsaw) for hour in (1, 4))
    chunks = cut(EventTimeRange(start, end), Shape("stateless"), timedelta(minutes=30))
    # at two o'clock it is three: two hours, not three
    assert len(chunks) == 4
    assert [c.owns.start for c in chunks[1:]] == [c.owns.end for c in chunks[:-1]]
    gap = timedelta(minutes=30)
    session = needed_input(
        EventTimeRange(datetime(2026, 3, 29, 3, 30, tzinfo=warsaw), end), Shape("session", gap)
    )
    assert session.start == datetime(2026, 3, 29, 0, 30, tzinfo=timezone.utc)


def test_a_range_must_not_end_before_it_starts() -> None:
    with pytest.raises(UsageError, match=r"starts at .* and ends at .* start must be before"):
        EventTimeRange(EPOCH, EPOCH)


def test_chunks_too_short_are_refused() -> None:
    with pytest.raises(UsageError, match=r"2,592,000 chunks\. Choose a longer --chunk"):
        cut(
            EventTimeRange(EPOCH, EPOCH + timedelta(days=30)),
            Shape("stateless"),
            timedelta(seconds=1),
        )
