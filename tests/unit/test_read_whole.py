"""Whether a function of the user's has read its batch, by what Spark counted meanwhile."""

from __future__ import annotations

from typing import Any

import pytest

from ebbtide.sources.kafka import READ, was_read_whole

START, END = {"visits": {"0": 5, "1": 0}}, {"visits": {"0": 7, "1": 3}}
WHOLE = {"records": 5, "offsets": 5 + 6 + 0 + 1 + 2}


def progress(
    read: dict[str, Any] | None, start: dict[str, Any] | None = START, end: Any = END
) -> dict[str, Any]:
    observed = {} if read is None else {READ: read}
    return {"observedMetrics": observed, "sources": [{"startOffset": start, "endOffset": end}]}


@pytest.mark.parametrize(
    ("found", "whole"),
    [
        (progress(WHOLE), True),
        (progress(None), True),
        (progress({"records": 0, "offsets": None}), False),
        (progress({"records": 1, "offsets": 5}), False),
        # two parts of it, together as many records
        (progress({"records": 5, "offsets": 5 + 5 + 6 + 0 + 0}), False),
        (progress({"records": 10, "offsets": 28}), False),
        # nothing new, nothing read
        (progress({"records": 0}, START, START), True),
        (progress({"records": 0}, None, None), True),
        # the first batch, and a new partition
        (progress(WHOLE, None), False),
        (progress(WHOLE, {"visits": {"0": 5}}), False),
    ],
)
def test_only_a_whole_read_counts(found: dict[str, Any], whole: bool) -> None:
    assert was_read_whole(found, "visits") is whole
