"""The fold over visits, against the plainest program that says the same, and its bytes."""

from __future__ import annotations

import struct
import subprocess
import sys
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark import cloudpickle

import ebbtide
from ebbtide.errors import CheckpointError
from ebbtide.systems.early_writer.adapter import _follow, _look_back
from ebbtide.systems.early_writer.fold import GAP, NO_VISITS, OpenVisits, expire, fold, fold_range
from ebbtide.systems.early_writer.state import decode, encode
from ebbtide.systems.early_writer.state_decoder import _decode

GAP_MS = GAP // timedelta(milliseconds=1)
Event = tuple[int, int]

ids = st.integers(-2, 2) | st.sampled_from([-(2**63), 2**31 - 1])
times = st.integers(-5, 5).map(lambda n: n * GAP_MS // 3) | st.integers(-(2**40), 2**40)
events = st.lists(st.tuples(ids, times), max_size=12)
watermarks = st.integers(0, 6).map(lambda n: n * GAP_MS // 3)


def columns(batch: list[Event]) -> tuple[np.ndarray, np.ndarray]:
    found = np.array(batch, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def visit_by_visit(
    state: dict[int, tuple[int, int]], batch: list[Event], watermark: int
) -> tuple[dict[int, tuple[int, int]], set[tuple[int, int, bool]]]:
    """What the scenario says, one visit at a time."""
    state, reports = dict(state), set()
    for visit in {id_ for id_, _ in batch}:
        own = [time for id_, time in batch if id_ == visit]
        pages = state.get(visit, (0, 0))[0] + len(own)
        state[visit] = (pages, (watermark or max(own)) + GAP_MS)
        reports.add((visit, pages, False))
    for visit, (pages, timer) in list(state.items()):
        if timer <= watermark:
            del state[visit]
            reports.add((visit, pages, True))
    return state, reports


def reports_of(visits: OpenVisits, *, finished: bool) -> set[tuple[int, int, bool]]:
    return {(id_, pages, finished) for id_, (pages, _) in visits.by_id().items()}


@settings(max_examples=60)
@given(st.lists(st.tuples(events, watermarks), max_size=6))
def test_the_fold_is_that_of_each_visit_by_itself(batches: list[tuple[list[Event], int]]) -> None:
    visits, plain, watermark = NO_VISITS, dict[int, tuple[int, int]](), 0
    for batch, moved in batches:
        watermark = max(watermark, moved)
        visits, touched = fold(visits, *columns(batch), watermark)
        visits, ended = expire(visits, watermark)
        plain, reports = visit_by_visit(plain, batch, watermark)
        assert visits.by_id() == plain
        found = reports_of(touched, finished=False) | reports_of(ended, finished=True)
        assert found == reports
        assert list(visits.ids) == sorted(visits.ids)
        assert decode(encode(visits)).by_id() == plain


@given(events, st.randoms())
def test_a_range_is_the_same_in_any_order(batch: list[Event], chance: object) -> None:
    expected = []
    for visit in sorted({id_ for id_, _ in batch}):
        last, pages = None, 0
        for time in sorted(time for id_, time in batch if id_ == visit):
            if last is not None and time - last >= GAP_MS:
                expected.append((visit, pages))
                pages = 0
            last, pages = time, pages + 1
        expected.append((visit, pages))
    shuffled = list(batch)
    chance.shuffle(shuffled)  # type: ignore[attr-defined]
    ended = fold_range(*columns(shuffled))
    assert list(zip(ended.ids.tolist(), ended.pages.tolist(), strict=True)) == expected


@settings(max_examples=20)
@given(st.lists(st.lists(st.integers(0, 7), min_size=1, max_size=5), min_size=1, max_size=4))
def test_a_range_is_what_a_stream_says_that_flows(visits: list[list[int]]) -> None:
    """Batches of a minute, events in time, visits that pause for less than the gap, or end."""
    minute, delay, beat = GAP_MS // 10, 15, 99
    times: dict[int, list[int]] = {}
    for visit, pauses in enumerate(visits):
        begins = 16 + 60 * (visit // 2)  # two of each id, the second long after the first
        times[visit] = [begins + sum(pauses[:n]) for n in range(len(pauses))]
    events = [(visit % 2, at) for visit, own in times.items() for at in own]
    open_, ended = NO_VISITS, []
    for now in range(170):
        watermark = max(0, now - delay) * minute
        batch = [(id_, at * minute) for id_, at in events if at == now] + [(beat, now * minute)]
        open_, _ = fold(open_, *columns(batch), watermark)
        open_, finished = expire(open_, watermark)
        ended += [(i, n) for i, n in zip(finished.ids, finished.pages, strict=True) if i != beat]
    expected = fold_range(*columns([(id_, at * minute) for id_, at in events]))
    assert sorted(ended) == sorted(zip(expected.ids, expected.pages, strict=True))


def test_the_state_follows_open_visits_not_all_that_ever_were() -> None:
    """A hundred thousand visits of two pages, a thousand every five minutes."""
    visits, ended, most, many, five = NO_VISITS, 0, 0, 1_000, GAP_MS // 2
    for step in range(106):
        now = step * five
        watermark = max(0, now - 3 * five)
        new = np.arange(step * many, (step + 1) * many if step < 100 else step * many)
        pages = np.concatenate([new, new])
        visits, _ = fold(visits, pages, np.full(len(pages), now), watermark)
        visits, finished = expire(visits, watermark)
        ended += len(finished)
        most = max(most, len(encode(visits)))
    assert ended == 100_000
    # those of ten minutes, and before there is a watermark, of its fifteen minutes more
    assert most <= 24 * 6 * many + 8
    assert len(visits) == 0


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"EV",
        encode(OpenVisits.of({7: (3, 600_000)}))[:-1],
        encode(OpenVisits.of({7: (3, 600_000)})) + b"\0",
        b"EV\x02" + encode(NO_VISITS)[3:],
        struct.pack("<q", 12),
    ],
)
def test_bytes_that_hold_no_visits_are_refused(state: bytes) -> None:
    with pytest.raises(CheckpointError, match=f"A state of {len(state)} bytes .* does not hold"):
        decode(state)


def test_a_clusters_workers_need_no_ebbtide() -> None:
    """What `build_session` does for a master that is not local."""
    cloudpickle.register_pickle_by_value(ebbtide)  # type: ignore[no-untyped-call]
    try:
        sent = cloudpickle.dumps(_look_back)  # type: ignore[no-untyped-call]
        # what a stream and the state's reader send, too
        for function in (_follow, _decode):
            cloudpickle.dumps(function)  # type: ignore[no-untyped-call]
    finally:
        cloudpickle.unregister_pickle_by_value(ebbtide)  # type: ignore[no-untyped-call]
    receive = (
        "import sys\n"
        "sys.modules['ebbtide'] = None\n"
        "import pandas\n"
        "from pyspark import cloudpickle\n"
        "fold = cloudpickle.loads(sys.stdin.buffer.read())\n"
        "rows = fold(pandas.DataFrame({'id': [7, 7], 'time': [0, 1]}))\n"
        "print(rows.to_dict('records'))\n"
    )
    got = subprocess.run(
        [sys.executable, "-c", receive], check=True, capture_output=True, input=sent
    )
    assert got.stdout.decode().strip() == "[{'id': 7, 'visited_pages': 2, 'is_finished': True}]"
