"""Which topics new code reads, and whether Spark goes on with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ebbtide.checks import IGNORES, MISBINDS, PartVerdict
from ebbtide.connectors.streams import StreamRead


def recognize_topics(options: Mapping[str, str]) -> StreamRead:
    """The topics that options of Spark's source name.

    >>> recognize_topics({"subscribe": "visits, clicks"}).names
    ('clicks', 'visits')
    """
    given = {name.lower(): value for name, value in options.items()}
    topics = {topic.strip() for topic in given.get("subscribe", "").split(",")} - {""}
    with suppress(ValueError):
        topics |= set(json.loads(given.get("assign", "{}")))
    pattern = given.get("subscribepattern")
    label = f"topic {pattern or ', '.join(sorted(topics))}"
    may_lose = given.get("failondataloss", "true").lower() == "false"
    return StreamRead("kafka", tuple(sorted(topics)), label, pattern, may_lose)


def compare_topics(
    part: str, old: tuple[str, ...], new: StreamRead, others: Sequence[StreamRead]
) -> PartVerdict:
    """Whether Spark goes on: to it, a topic that is not read any more has lost its data.

    >>> compare_topics("source 0", ("visits",), StreamRead("kafka", ("clicks",)), ()).detail
    'visits is not read any more: to Spark, its data is lost'
    """
    if new.pattern is not None:
        gone, added = {name for name in old if not _matches(new.pattern, name)}, set[str]()
    else:
        gone, added = set(old) - set(new.names), set(new.names) - set(old)
    listed = ", ".join(sorted(gone))
    if gone and any(gone <= set(other.names) for other in others):
        return PartVerdict.breaks(part, f"{listed} is another source now: the order has changed")
    if gone and not new.may_lose_data:
        return PartVerdict.breaks(
            part, f"{listed} is not read any more: to Spark, its data is lost"
        )
    if gone and gone == set(old):
        return PartVerdict.breaks(part, f"{listed} is not read any more, but {new}", MISBINDS)
    if gone:
        detail = f"{listed} is left out from now on (failOnDataLoss=false)"
        return PartVerdict.compatible(part, detail, IGNORES)
    if added:
        detail = f"{', '.join(sorted(added))} is new, and read from its first record on"
        return PartVerdict.compatible(part, detail)
    return PartVerdict.same(part, str(new))


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # Java's own syntax
        return True
