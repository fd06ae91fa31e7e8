"""Read the logs of a checkpoint: what each batch was planned to read, and which are committed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ebbtide.checkpoint.layout import BARRIER
from ebbtide.errors import CheckpointError
from ebbtide.storage import Folder

Positions = Mapping[tuple[str, int], int]
"""Kafka offsets by topic and partition."""


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


@dataclass(frozen=True)
class Batch:
    """One micro-batch as the logs hold it."""

    id: int
    offsets: OffsetEntry
    commit: CommitEntry | None

    @property
    def committed(self) -> bool:
        """Whether it is done."""
        return self.commit is not None

    @cached_property
    def positions(self) -> Positions:
        """Up to where it reads Kafka: all its Kafka sources together."""
        return kafka_positions(self.offsets.sources)


@dataclass(frozen=True)
class Logs:
    """What the logs of a checkpoint say."""

    location: str
    query_id: str
    batches: tuple[Batch, ...]
    digest: str
    """Of every log file's text, barriers aside: it changes when any of them does."""
    commits_alone: tuple[int, ...] = ()
    """Commits whose offsets are gone."""
    barriers: tuple[int, ...] = ()
    """Entries that are ours: a rewind or an undo is not finished."""

    @property
    def latest_committed(self) -> Batch | None:
        """The last batch that is done."""
        return next((batch for batch in reversed(self.batches) if batch.committed), None)

    @cached_property
    def by_id(self) -> Mapping[int, Batch]:
        """The batches by their id."""
        return {batch.id: batch for batch in self.batches}

    @cached_property
    def reads_kafka(self) -> bool:
        """Whether the last batch does."""
        return any(batch.positions for batch in self.batches[-1:])

    def before(self, id_: int) -> Batch | None:
        """The batch before one; ids may have gaps (asynchronous progress tracking)."""
        return self.by_id.get(id_ - 1) or next(
            (batch for batch in reversed(self.batches) if batch.id < id_), None
        )

    def records(self, batch: Batch) -> int | None:
        """How many Kafka records a batch reads; None if that cannot be said."""
        before = self.before(batch.id)
        if not batch.positions or (before is None and batch.id > 0):
            return None
        start: Positions = before.positions if before else {}
        return sum(end - start.get(key, 0) for key, end in batch.positions.items())


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


def kafka_positions(sources: Iterable[str | None]) -> Positions:
    """The Kafka offsets among those of some sources.

    >>> kafka_positions(['{"visits":{"0":5}}', '{"logOffset":3}', None])
    {('visits', 0): 5}
    """
    return {
        (topic, partition): offset
        for text in sources
        if text is not None and is_kafka_offset(_parse_json(text))
        for topic, partitions in parse_kafka_offset(text).items()
        for partition, offset in partitions.items()
    }


def _parse_json(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)


def is_kafka_offset(found: Any) -> bool:
    """Whether an offset, parsed from JSON, is one of a Kafka source."""
    return isinstance(found, dict) and all(_is_positions(value) for value in found.values())


def _is_positions(found: Any) -> bool:
    return isinstance(found, dict) and all(
        key.isdigit() and isinstance(value, int) for key, value in found.items()
    )


def read_logs(folder: Folder) -> Logs:
    """Read the query id and the logs alone."""
    offset_ids, commit_ids = folder.ids("offsets"), folder.ids("commits")
    query_id = _query_id(folder, empty=not offset_ids and not commit_ids)
    texts = folder.read_all(
        [*(f"offsets/{id_}" for id_ in offset_ids), *(f"commits/{id_}" for id_ in commit_ids)]
    )
    batches = []
    barriers = []
    for id_ in offset_ids:
        text = texts.get(f"offsets/{id_}")
        if text is None:  # purged by Spark between the listing and the reading
            continue
        if text.startswith(BARRIER):
            barriers.append(id_)
            continue
        offsets = parse_offsets(text, f"{folder.url}/offsets/{id_}")
        done = texts.get(f"commits/{id_}")
        commit = None if done is None else parse_commit(done, f"{folder.url}/commits/{id_}")
        batches.append(Batch(id_, offsets, commit))
    digest = hashlib.sha256(query_id.encode())
    for path, text in sorted(texts.items()):
        if not text.startswith(BARRIER):
            digest.update(f"\0{path}\0{text}".encode())
    alone = tuple(sorted(set(commit_ids) - {batch.id for batch in batches}))
    return Logs(folder.url, query_id, tuple(batches), digest.hexdigest(), alone, tuple(barriers))


def _query_id(folder: Folder, *, empty: bool) -> str:
    metadata = folder.read("metadata")
    if metadata is None:
        if not empty:
            raise CheckpointError(
                f"{folder.url} has offsets or commits but no file 'metadata' with the query's id.",
                "Put it back from a backup of the folder; Spark 4.2 does not start without it.",
            )
        raise CheckpointError(
            f"{folder.url} is not a checkpoint: it has no file 'metadata'.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    try:
        return str(json.loads(metadata)["id"])
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(
            f"{folder.url}/metadata holds no query id: {metadata[:80]!r}."
        ) from None


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
