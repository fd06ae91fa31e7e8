"""Whether a function of the user's has read its batch, by what Spark counted meanwhile."""

from __future__ import annotations

import zlib
from typing import Any

import pytest

from ebbtide.connectors.progress import METRICS, READ, was_read_whole

START, END = {"visits": {"0": 5, "1": 0}}, {"visits": {"0": 7, "1": 3}}
FIRST, SECOND = zlib.crc32(b"0"), zlib.crc32(b"1")


def read(*offsets: tuple[int, int]) -> dict[str, int]:
    """What Spark observes of records, each with the weight of its partition and its offset."""
    return {"records": len(offsets), "weighed": sum(w * (offset + 1) for w, offset in offsets)}


ALL = [(FIRST, 5), (FIRST, 6), (SECOND, 0), (SECOND, 1), (SECOND, 2)]
WHOLE = read(*ALL)


def progress(
    read: dict[str, Any] | None,
    start: dict[str, Any] | None = START,
    end: Any = END,
    decoded: int | None = None,
) -> dict[str, Any]:
    count = {"records": read["records"] if read and decoded is None else decoded}
    observed = {} if read is None else {READ: read, METRICS: count}
    return {"observedMetrics": observed, "sources": [{"startOffset": start, "endOffset": end}]}


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (progress(WHOLE), True),
        (progress(None), True),
        (progress({"records": 0, "weighed": None}), False),
        (progress(read((FIRST, 5))), False),
        # read ahead for Python, which gave back the first rows only
        (progress(WHOLE, decoded=1), False),
        # two parts of it, together as many records
        (progress(read((FIRST, 5), *ALL[:2], (SECOND, 0), (SECOND, 0))), False),
        (progress(read(*ALL, *ALL)), False),
        # the same partition twice and the other not at all, at the same offsets
        (
            progress(
                read((FIRST, 4), (FIRST, 4)),
                {"visits": {"0": 4, "1": 4}},
                {"visits": {"0": 5, "1": 5}},
            ),
            False,
        ),
        # nothing new, nothing read
        (progress({"records": 0}, START, START), True),
        (progress({"records": 0}, None, None), True),
        # the first batch, and a new partition
        (progress(WHOLE, None), False),
        (progress(WHOLE, {"visits": {"0": 5}}), False),
    ],
)
def test_only_a_whole_read_counts(found: dict[str, Any], whole: bool) -> None:
    assert was_read_whole(found) is whole
