"""Read the logs of a checkpoint: what each batch was planned to read, and which are committed."""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from ebbtide.checkpoint.layout import BARRIER
from ebbtide.errors import CheckpointError
from ebbtide.notes import INVALID, decode
from ebbtide.parsing import MAX_LOG_BYTES, parse_id, parse_json
from ebbtide.storage import Folder

Positions = Mapping[tuple[str, int], int]
"""Kafka offsets by topic and partition."""
_NO_OFFSET = "-"
_PARTITIONS = (
    "spark.sql.streaming.internal.stateStore.partitions",
    "spark.sql.shuffle.partitions",
)
"""The settings that say into how many partitions the state is divided, the first one first."""
_MAX_PARTITIONS = 2**31


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
    names: tuple[str, ...] = ()
    """Format v2: what each source is called; its folder in `sources` has that name."""

    def name_of(self, index: int) -> str:
        """What a source is called: its index, unless the query gives it a name (4.2)."""
        return self.names[index] if index < len(self.names) else str(index)

    @property
    def by_name(self) -> dict[str, str | None]:
        """The offset of each source: in format v2 their order is not that of the query."""
        return {self.name_of(index): offset for index, offset in enumerate(self.sources)}

    @property
    def partitions(self) -> int | None:
        """How many partitions the state has in this batch, where the entry says so."""
        text = next((self.conf[name] for name in _PARTITIONS if name in self.conf), None)
        return None if text is None else int(text)


@dataclass(frozen=True)
class CommitEntry:
    """That a batch is done, and the watermark for the next one."""

    next_watermark_ms: int
    state_ids: Mapping[int, tuple[tuple[str, ...], ...]] | None = None
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

    @property
    def last_id(self) -> int:
        """The last batch that was planned; -1 if none was."""
        return self.batches[-1].id if self.batches else -1

    @property
    def next_id(self) -> int:
        """The batch that runs next: the last one if it is planned and not done."""
        last = self.batches[-1] if self.batches else None
        return 0 if last is None else last.id + 1 if last.committed else last.id

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
        earlier = bisect_left(self.batches, id_, key=lambda batch: batch.id)
        return self.batches[earlier - 1] if earlier else None

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
    version, metadata, *offsets = _split(text, where, "v1", "v2")
    if metadata is None:
        raise _malformed(where, "it ends after its first line")
    names: tuple[str, ...] = ()
    if version == "v2":
        # "sourceId:offset"
        parts = [line.partition(":") for line in offsets]
        names = tuple(name if colon else str(at) for at, (name, colon, _) in enumerate(parts))
        offsets = [offset if colon else name for name, colon, offset in parts]
    return OffsetEntry(
        watermark_ms=_number(metadata, "batchWatermarkMs", where),
        timestamp_ms=_number(metadata, "batchTimestampMs", where),
        conf=_parse_conf(metadata, where),
        sources=tuple(None if line == _NO_OFFSET else line for line in offsets),
        version=version,
        control=metadata.get("controlBatchInfo") or None,
        names=names,
    )


def parse_commit(text: str, where: str) -> CommitEntry:
    r"""Read a commit log entry, format v1 to v3.

    >>> parse_commit('v1\n{"nextBatchWatermarkMs":9}', "commits/1")
    CommitEntry(next_watermark_ms=9, state_ids=None)
    """
    _, metadata, *_ = _split(text, where, "v1", "v2", "v3")
    metadata = metadata or {}
    try:
        state_ids = {
            id_: _parse_ids(partitions)
            for operator, partitions in (metadata.get("stateUniqueIds") or {}).items()
            if (id_ := parse_id(operator)) is not None
        }
    except INVALID:
        raise _malformed(where, "its stateUniqueIds are not those of state files") from None
    return CommitEntry(_number(metadata, "nextBatchWatermarkMs", where), state_ids or None)


def _parse_ids(partitions: Any) -> tuple[tuple[str, ...], ...]:
    """The ids of each partition; all are looked at in one go, as a log may hold a million."""
    lists = set(map(type, partitions)) <= {list}
    if not lists or not set(map(type, chain.from_iterable(partitions))) <= {str}:
        raise TypeError("not lists of texts")
    return tuple(map(tuple, partitions))


def parse_kafka_offset(offset: str) -> dict[str, dict[int, int]]:
    """A Kafka source's offset by topic and partition.

    >>> parse_kafka_offset('{"visits":{"0":0,"1":3}}')
    {'visits': {0: 0, 1: 3}}
    """
    offsets: dict[str, dict[int, int]] = {}
    for (topic, partition), position in (to_positions(parse_json(offset)) or {}).items():
        offsets.setdefault(topic, {})[partition] = position
    return offsets


def kafka_positions(sources: Iterable[str | None]) -> Positions:
    """The Kafka offsets among those of some sources.

    >>> kafka_positions(['{"visits":{"0":5}}', '{"logOffset":3}', None])
    {('visits', 0): 5}
    """
    positions: dict[tuple[str, int], int] = {}
    for text in sources:
        with suppress(ValueError):
            positions |= to_positions(parse_json(text or "null")) or {}
    return positions


def to_positions(offset: Any) -> dict[tuple[str, int], int] | None:
    """An offset that was parsed from JSON; None if it is not of a Kafka source."""
    if not is_kafka_offset(offset):
        return None
    return {
        (topic, int(partition)): position
        for topic, partitions in offset.items()
        for partition, position in partitions.items()
    }


def is_kafka_offset(offset: Any) -> bool:
    """Whether an offset, parsed from JSON, is one of a Kafka source."""
    return isinstance(offset, dict) and all(
        isinstance(partitions, dict)
        and all(parse_id(key) is not None and is_number(end) for key, end in partitions.items())
        for partitions in offset.values()
    )


def parse_initial_offset(text: str) -> str | None:
    r"""Where a Kafka source began, from its file `0`: a NUL byte, `v1`, then JSON.

    >>> parse_initial_offset('\0v1\n{"visits":{"0":3}}')
    '{"visits":{"0":3}}'
    >>> parse_initial_offset("v1\n")
    """
    return text.partition("\n")[2] if text.startswith("\0") else None


def read_logs(folder: Folder) -> Logs:
    """Read the query id and the logs alone."""
    offset_ids, commit_ids = folder.ids("offsets"), folder.ids("commits")
    query_id = read_query_id(folder, empty=not offset_ids and not commit_ids)
    paths = [f"offsets/{id_}" for id_ in offset_ids] + [f"commits/{id_}" for id_ in commit_ids]
    texts = folder.read_all(paths, MAX_LOG_BYTES)
    barriers = {path for path, text in texts.items() if text.startswith(BARRIER)}
    batches = []
    for id_ in offset_ids:
        planned, done = f"offsets/{id_}", f"commits/{id_}"
        # Spark may have purged it between the listing and the reading
        if planned in texts and planned not in barriers:
            offsets = parse_offsets(texts[planned], f"{folder.url}/{planned}")
            commit = parse_commit(texts[done], f"{folder.url}/{done}") if done in texts else None
            batches.append(Batch(id_, offsets, commit))
    digest = hashlib.sha256(query_id.encode())
    for path, text in sorted(texts.items()):
        if path not in barriers:
            digest.update(f"\0{path}\0{text}".encode())
    return Logs(
        folder.url,
        query_id,
        tuple(batches),
        digest.hexdigest(),
        commits_alone=tuple(sorted(set(commit_ids) - {batch.id for batch in batches})),
        barriers=tuple(id_ for id_ in offset_ids if f"offsets/{id_}" in barriers),
    )


def _no_checkpoint(folder: Folder) -> CheckpointError:
    """Why a place is no checkpoint; one that lies in it may have been meant."""
    place = Path(folder.root)
    if folder.local and place.is_file():
        return CheckpointError(
            f"{folder.url} is not a checkpoint: it is a file.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    if folder.local and not place.exists():
        return CheckpointError(
            f"{folder.url} is not a checkpoint: there is no such folder.",
            "Name the folder that holds metadata, offsets and commits.",
        )
    if folder.local and (around := _find_around(place)):
        return CheckpointError(
            f"{folder.url} is not a checkpoint: it is a part of one.", f"Name {around}."
        )
    names = folder.names() if folder.local else []
    inside = [name for name in names if folder.exists(f"{name}/metadata")]
    such = f", such as {folder.url}/{inside[0]}" if inside else ""
    return CheckpointError(
        f"{folder.url or '/'} is not a checkpoint: it has no file 'metadata'.",
        f"Name the folder that holds metadata, offsets and commits{such}.",
    )


def _find_around(place: Path) -> Path | None:
    """The checkpoint in which a place lies."""
    parts = ("metadata", "offsets", "commits")
    around = (p for p in place.parents if all((p / part).exists() for part in parts))
    return next(around, None)


def read_query_id(folder: Folder, *, empty: bool = True) -> str:
    """The id of the query whose checkpoint it is; `empty` says that it has no batches yet."""
    metadata = folder.read("metadata", limit=MAX_LOG_BYTES)
    if metadata is None and not empty:
        raise CheckpointError(
            f"{folder.url} has offsets or commits but no file 'metadata' with the query's id.",
            "Put it back from a backup of the folder; Spark 4.2 does not start without it.",
        )
    if metadata is None:
        raise _no_checkpoint(folder)
    try:
        return decode(str, parse_json(metadata)["id"])
    except INVALID:
        raise CheckpointError(
            f"{folder.url}/metadata holds no query id: {metadata[:80]!r}.",
            "Put it back from a copy of the checkpoint.",
        ) from None


def _split(text: str, where: str, *versions: str) -> tuple[Any, ...]:
    """The version, the metadata if there are any, and the other lines."""
    version, *lines = text.rstrip("\n").split("\n")
    if version not in versions:
        raise _malformed(where, f"its first line is {version[:40]!r}, not {' or '.join(versions)}")
    if not lines:
        return version, None
    try:
        metadata = parse_json(lines[0])
    except ValueError:
        raise _malformed(where, "its second line is not JSON") from None
    if not isinstance(metadata, dict):
        raise _malformed(where, "its second line is not a JSON object")
    return version, metadata, *lines[1:]


def _number(metadata: Mapping[str, Any], name: str, where: str) -> int:
    number = metadata.get(name, 0)
    if not is_number(number):
        raise _malformed(where, f"its {name} is {str(number)[:40]}")
    return int(number)


def is_number(value: Any) -> bool:
    """Whether it is a Long of Java's."""
    return type(value) is int and not abs(value) >> 63


def _parse_conf(metadata: Mapping[str, Any], where: str) -> Mapping[str, str]:
    try:
        conf = decode(dict[str, str], metadata.get("conf") or {})
    except INVALID:
        raise _malformed(where, "its conf is not a map of texts") from None
    for name in _PARTITIONS:
        if name in conf and not 0 < (parse_id(conf[name]) or 0) < _MAX_PARTITIONS:
            raise _malformed(where, f"its {name} is {conf[name][:40]!r}")
    return conf


def _malformed(where: str, why: str) -> CheckpointError:
    return CheckpointError(
        f"{where} is not a log file of Spark 3.5 to 4.3: {why}.",
        "Put it back from a copy of the checkpoint.",
    )
