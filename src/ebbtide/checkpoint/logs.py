"""The text of an `offsets/N` or `commits/N` file in, a frozen entry out."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ebbtide.errors import CheckpointError

_NO_OFFSET = "-"
_PARTITIONS = (
    "spark.sql.streaming.internal.stateStore.partitions",
    "spark.sql.shuffle.partitions",
)


@dataclass(frozen=True)
class OffsetEntry:
    """What a batch was planned to read: one end offset per source, in the plan's order."""

    watermark_ms: int
    timestamp_ms: int
    conf: Mapping[str, str]
    sources: tuple[str | None, ...]
    """Each source's offset as Spark wrote it; None where a source had none yet."""
    version: str = "v1"
    control: Any = None
    """Set on a batch without input that changes the state's layout (repartition, 4.2)."""

    @property
    def partitions(self) -> int | None:
        """How many partitions the state has in this batch, where the entry says so."""
        for name in _PARTITIONS:
            if name in self.conf:
                return int(self.conf[name])
        return None


@dataclass(frozen=True)
class CommitEntry:
    """That a batch is done, and the watermark for the next one."""

    next_watermark_ms: int
    state_ids: Mapping[int, tuple[frozenset[str], ...]] | None = None
    """Format version 2: by operator and partition, the ids of the files that it wrote."""


def parse_offsets(text: str, where: str) -> OffsetEntry:
    r"""Read an offset log entry, format v1 or v2.

    >>> entry = parse_offsets(
    ...     'v1\n{"batchWatermarkMs":5,"batchTimestampMs":7,"conf":{}}\n{"visits":{"0":3}}', "o/1"
    ... )
    >>> entry.watermark_ms, entry.sources
    (5, ('{"visits":{"0":3}}',))
    """
    version, lines = _split(text, where, known=("v1", "v2"))
    if not lines:
        raise _malformed(where, "it ends after its first line")
    metadata = _object(lines[0], where)
    offsets = lines[1:]
    if version == "v2":
        # "sourceId:offset"
        offsets = [line.split(":", 1)[1] if ":" in line else line for line in offsets]
    return OffsetEntry(
        watermark_ms=_number(metadata, "batchWatermarkMs", where),
        timestamp_ms=_number(metadata, "batchTimestampMs", where),
        conf=metadata.get("conf") or {},
        sources=tuple(None if line == _NO_OFFSET else line for line in offsets),
        version=version,
        control=metadata.get("controlBatchInfo") or None,
    )


def parse_commit(text: str, where: str) -> CommitEntry:
    r"""Read a commit log entry, format v1 to v3.

    >>> parse_commit('v1\n{"nextBatchWatermarkMs":9}', "commits/1")
    CommitEntry(next_watermark_ms=9, state_ids=None)
    """
    _, lines = _split(text, where, known=("v1", "v2", "v3"))
    metadata = _object(lines[0], where) if lines else {}
    return CommitEntry(
        next_watermark_ms=_number(metadata, "nextBatchWatermarkMs", where),
        state_ids=_state_ids(metadata.get("stateUniqueIds")),
    )


def _state_ids(found: Any) -> dict[int, tuple[frozenset[str], ...]] | None:
    if not found:
        return None
    return {
        int(operator): tuple(frozenset(ids) for ids in partitions)
        for operator, partitions in found.items()
    }


def parse_kafka_offset(offset: str) -> dict[str, dict[int, int]]:
    """A Kafka source's offset by topic and partition.

    >>> parse_kafka_offset('{"visits":{"0":0,"1":3}}')
    {'visits': {0: 0, 1: 3}}
    """
    return {
        topic: {int(partition): int(position) for partition, position in partitions.items()}
        for topic, partitions in json.loads(offset).items()
    }


def find_kafka_offset(text: str | None) -> dict[str, dict[int, int]]:
    """A source's offset by topic and partition; empty if the source is not Kafka."""
    try:
        is_kafka = text is not None and is_kafka_offset(json.loads(text))
    except ValueError:
        is_kafka = False
    return parse_kafka_offset(text) if is_kafka and text is not None else {}


def is_kafka_offset(parsed: Any) -> bool:
    """Whether an offset, parsed from JSON, is one of a Kafka source.

    >>> is_kafka_offset({"visits": {"0": 0}}), is_kafka_offset({"logOffset": 3})
    (True, False)
    """
    return isinstance(parsed, dict) and all(_is_positions(value) for value in parsed.values())


def _is_positions(found: Any) -> bool:
    return isinstance(found, dict) and all(
        key.isdigit() and isinstance(value, int) for key, value in found.items()
    )


def _split(text: str, where: str, known: tuple[str, ...]) -> tuple[str, list[str]]:
    version, *lines = text.rstrip("\n").split("\n")
    if version not in known:
        raise _malformed(where, f"its first line is {version[:40]!r}, not {' or '.join(known)}")
    return version, lines


def _object(line: str, where: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        raise _malformed(where, "its second line is not JSON") from None
    if not isinstance(found, dict):
        raise _malformed(where, "its second line is not a JSON object")
    return found


def _number(metadata: Mapping[str, Any], name: str, where: str) -> int:
    found = metadata.get(name, 0)
    if not isinstance(found, int):
        raise _malformed(where, f"its {name} is {found!r}")
    return found


def _malformed(where: str, why: str) -> CheckpointError:
    return CheckpointError(f"{where} is not a log file of Spark 3.5 to 4.2: {why}.")
