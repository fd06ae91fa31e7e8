"""Which topics new code reads, and whether Spark goes on with them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress

from ebbtide.checkpoint import log_files
from ebbtide.checks import IGNORES, MISBINDS, PartVerdict
from ebbtide.connectors.streams import StreamRead


def recognize_topics(options: Mapping[str, str]) -> StreamRead:
    """The topics that options of Spark's source name.

    >>> recognize_topics({"subscribe": "visits, clicks"}).names
    ('clicks', 'visits')
    """
    given = {name.lower(): value for name, value in options.items()}
    topics = {topic.strip() for topic in given.get("subscribe", "").split(",")} - {""}
    partitions: dict[str, frozenset[int]] | None = None
    with suppress(ValueError, TypeError, AttributeError):
        if assigned := json.loads(given.get("assign", "{}")):
            partitions = {topic: frozenset(chosen) for topic, chosen in assigned.items()}
            topics |= set(partitions)
    pattern = given.get("subscribepattern")
    label = f"topic {pattern or ', '.join(sorted(topics))}"
    may_lose = given.get("failondataloss", "true").lower() == "false"
    return StreamRead("kafka", tuple(sorted(topics)), label, pattern, may_lose, partitions)


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


def compare_partitions(part: str, offset: str, new: StreamRead) -> PartVerdict | None:
    """Whether a query that chooses partitions itself reads those in the newest offset.

    >>> new = recognize_topics({"assign": '{"visits": [0]}'})
    >>> compare_partitions("source 0", '{"visits": {"0": 5, "1": 7}}', new).detail
    'visits-1 is not read any more: to Spark, its data is lost'
    """
    if new.partitions is None:
        return None
    offsets = log_files.parse_kafka_offset(offset)
    old = {(topic, number) for topic, numbers in offsets.items() for number in numbers}
    now = {(topic, number) for topic, numbers in new.partitions.items() for number in numbers}
    gone, added = (_list_partitions(each) for each in (old - now, now - old))
    if gone and not new.may_lose_data:
        return PartVerdict.breaks(part, f"{gone} is not read any more: to Spark, its data is lost")
    if gone:
        detail = f"{gone} is left out from now on (failOnDataLoss=false)"
        return PartVerdict.compatible(part, detail, IGNORES)
    if added:
        detail = f"{added} is new, and read from its first record on"
        return PartVerdict.compatible(part, detail)
    return None


def _list_partitions(partitions: set[tuple[str, int]]) -> str:
    return ", ".join(f"{topic}-{number}" for topic, number in sorted(partitions))


def _matches(pattern: str, topic: str) -> bool:
    try:
        return re.fullmatch(pattern, topic) is not None
    except re.error:  # Java's own syntax
        return True
