"""A checkpoint folder in, one frozen `Checkpoint` out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from ebbtide.checkpoint.chain import Chain, prove
from ebbtide.checkpoint.journal import BARRIER, Journal, read_journal
from ebbtide.checkpoint.layout import unknown_files
from ebbtide.checkpoint.logs import (
    CommitEntry,
    OffsetEntry,
    find_kafka_offset,
    parse_commit,
    parse_offsets,
)
from ebbtide.checkpoint.state import Operator, Store, find_operators
from ebbtide.errors import CheckpointError
from ebbtide.storage import Folder, Tree, open_folder

Positions = Mapping[tuple[str, int], int]
"""Kafka offsets by topic and partition."""


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


def kafka_positions(sources: Iterable[str | None]) -> Positions:
    """The Kafka offsets among those of some sources.

    >>> kafka_positions(['{"visits":{"0":5}}', '{"logOffset":3}', None])
    {('visits', 0): 5}
    """
    return {
        (topic, partition): offset
        for text in sources
        for topic, partitions in find_kafka_offset(text).items()
        for partition, offset in partitions.items()
    }


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


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint as it lies there: logs, state, what we do not know."""

    folder: Folder
    tree: Tree
    logs: Logs
    operators: tuple[Operator, ...]
    first_offsets: Positions
    """Where its Kafka sources began, as Spark noted it at the first start."""
    unknown: tuple[str, ...] = ()
    """Files that no Spark from 3.5 to 4.2 writes."""
    interrupted: Journal | None = None
    """A rewind or an undo that was not finished."""

    @property
    def location(self) -> str:
        """Its path or URL."""
        return self.folder.url

    @cached_property
    def stores(self) -> tuple[Store, ...]:
        """Every store of every operator."""
        return tuple(store for operator in self.operators for store in operator.stores)

    def before(self, batch: int) -> Batch | None:
        """The batch that one follows; only a query without state may leave ids out."""
        return self.logs.by_id.get(batch - 1) if self.operators else self.logs.before(batch)

    def start(self, batch: int) -> Positions:
        """From where a batch reads Kafka."""
        before = self.before(batch)
        return {**self.first_offsets, **(before.positions if before else {})}

    def expected_stores(self, batch: int) -> tuple[Store, ...]:
        """The stores that a batch reads: not the partitions that a later repartition added."""
        return tuple(
            store
            for operator in self.operators
            for store in operator.stores
            if store.partition < self.partition_count(operator, batch)
        )

    def partition_count(self, operator: Operator, batch: int) -> int:
        """How many partitions an operator's state has when a batch starts."""
        if operator.partition_ids == (0,) and operator.keyless is not False:
            return 1  # an aggregation without a key has one, whatever is configured
        before = self.logs.before(batch) or self.logs.by_id.get(batch)
        configured = before.offsets.partitions if before else None
        return configured or operator.partitions or max(operator.partition_ids, default=-1) + 1

    def state_ids(self, batch: int, store: Store) -> frozenset[str] | None:
        """Format version 2: the unique ids of the version that a batch reads."""
        before = self.logs.by_id.get(batch - 1)
        if before is None or before.commit is None or before.commit.state_ids is None:
            return None
        partitions = before.commit.state_ids.get(store.operator, ())
        return partitions[store.partition] if store.partition < len(partitions) else frozenset()

    def why_not(self, batch: int) -> str | None:
        """Why a batch cannot be run again, as far as logs and names tell; None if it can."""
        if batch not in self.logs.by_id:
            return f"offsets/{batch} is gone"
        if batch > 0:
            before = self.before(batch)
            if before is None:
                return f"offsets/{batch - 1} is gone"
            if not before.committed:
                return f"batch {before.id} is not committed"
        return self._why_no_state(batch) if batch > 0 else None

    def why_no_repeat(self, batch: int) -> str | None:
        """Why Spark cannot run a batch again as it was planned, only planned anew."""
        entry, before = self.logs.by_id[batch].offsets, self.before(batch)
        if entry.control is not None:
            return f"batch {batch} only changed the number of partitions"
        if before is None:
            return None
        # Spark 4.2 compares the two counts if either entry is of format 2, and dies without one
        entries = {before.id: before.offsets, batch: entry}
        lacking = [id_ for id_, found in entries.items() if found.partitions is None]
        if lacking and any(found.version == "v2" for found in entries.values()):
            return (
                f"offsets/{lacking[0]} does not name the number of partitions, so Spark 4.2 cannot "
                f"repeat batch {batch}"
            )
        return None

    def require_finished(self) -> None:
        """Refuse while a rewind or an undo is not finished."""
        if self.interrupted is not None:
            raise self.interrupted.interrupted(self.location)
        if self.logs.barriers:
            raise CheckpointError(
                f"offsets/{self.logs.barriers[0]} of {self.location} is the barrier of a rewind "
                "whose journal is gone.",
                "Put .ebbtide/change.json back, or restore the checkpoint from a copy.",
            )

    def _why_no_state(self, batch: int) -> str | None:
        for operator in self.operators:
            count = self.partition_count(operator, batch)
            if missing := operator.missing_partitions(count):
                return f"operator {operator.id} has no partition {missing[0]}"
            by_id = self.state_ids(batch, operator.stores[0]) is not None
            for store in operator.stores if by_id else operator.distinct_stores:
                problem = self._problem(batch, store) if store.partition < count else None
                if problem is not None:
                    return f"{store}: {problem}"
        return None

    def _problem(self, batch: int, store: Store) -> str | None:
        ids = self.state_ids(batch, store)
        if ids is None:
            return store.versions.why_not(batch)
        files = (*store.versions.snapshots.get(batch, ()), *store.versions.changes.get(batch, ()))
        if any(file.unique_id in ids for file in files):
            return None
        return store.versions.why_not(batch) or f"version {batch} of this timeline is missing"

    @cached_property
    def restorable(self) -> Mapping[int, str | None]:
        """By batch: None if it can be run again, else why not."""
        return {batch.id: self.why_not(batch.id) for batch in self.logs.batches}

    def chains(self, batch: int) -> dict[Store, Chain]:
        """For each store that a batch reads, what loading its version takes, file by file."""
        stores = self.expected_stores(batch) if batch > 0 else ()

        def one(store: Store) -> Chain:
            return prove(self.folder, self.tree, store, batch, self.state_ids(batch, store))

        return dict(zip(stores, self.folder.map(one, stores), strict=True))

    @cached_property
    def state_bytes(self) -> Mapping[int, int]:
        """By operator: how much its state takes after the last committed batch."""
        latest = self.logs.latest_committed
        found = dict.fromkeys((operator.id for operator in self.operators), 0)
        for store, chain in (self.chains(latest.id + 1) if latest else {}).items():
            found[store.operator] += sum(self.size(path) for path in chain.files)
            found[store.operator] += sum(size for _, size in chain.shared)
        return found

    def size(self, path: str) -> int:
        """A file's size, from the listing where it came with it."""
        directory, _, name = path.rpartition("/")
        listing = self.tree[directory]
        if listing.sizes is not None:
            return listing.size[name]
        stat = self.folder.stat(path)
        return stat.size if stat else 0

    @property
    def oldest_restorable(self) -> int | None:
        """The first batch that can be run again."""
        return next((id_ for id_, reason in self.restorable.items() if reason is None), None)


def read_checkpoint(location: str) -> Checkpoint:
    r"""Read the checkpoint at a path or fsspec URL: logs, and the state by the names of its files.

    >>> import fsspec
    >>> memory = fsspec.filesystem("memory")
    >>> memory.pipe_file("/doc/metadata", b'{"id":"7"}')
    >>> entry = b'v1\n{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}\n{"t":{"0":3}}'
    >>> memory.pipe_file("/doc/offsets/0", entry)
    >>> read_checkpoint("memory://doc").oldest_restorable
    0
    """
    folder = open_folder(location)
    logs = read_logs(folder)
    tree = folder.scan()
    unknown = [
        f"{directory}/{name}" if directory else name
        for directory, listing in tree.items()
        for name in unknown_files(directory, listing.names)
    ]
    return Checkpoint(
        folder,
        tree,
        logs,
        find_operators(tree, _operator_metadata(folder, tree), _keyless(folder, tree)),
        _first_offsets(folder, tree),
        tuple(unknown),
        read_journal(folder),
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


def _operator_metadata(folder: Folder, tree: Tree) -> dict[int, str]:
    """Spark's own text about each operator: one file, or the newest of a series by batch."""
    paths = {}
    for directory, listing in tree.items():
        parts = directory.split("/")
        if len(parts) < 3 or parts[0] != "state" or parts[2] != "_metadata":
            continue
        if len(parts) == 3 and "metadata" in listing.members:
            paths[f"{directory}/metadata"] = int(parts[1])
        elif len(parts) == 4 and (series := [int(n) for n in listing.names if n.isdigit()]):
            paths[f"{directory}/{max(series)}"] = int(parts[1])
    return {paths[path]: text for path, text in folder.read_all(paths).items()}


def _keyless(folder: Folder, tree: Tree) -> dict[int, bool]:
    """Operators with one partition only: whether the schema of their state has an empty key."""
    paths = {}
    for directory, listing in tree.items():
        parts = directory.split("/")
        alone = parts[0] == "state" and parts[2:] == ["0", "_metadata"]
        alone = alone and f"state/{parts[1]}/1" not in tree
        if alone and "schema" in listing.members:
            paths[f"{directory}/schema"] = int(parts[1])
    return {
        paths[path]: text.partition('{"type":"struct","fields":[')[2].startswith("]")
        for path, text in folder.read_all(paths).items()
    }


def _first_offsets(folder: Folder, tree: Tree) -> Positions:
    """Where Kafka sources began: `sources/<i>/0` holds a NUL byte, `v1`, then JSON."""
    paths = [
        f"{directory}/0"
        for directory, listing in tree.items()
        if directory.startswith("sources/") and "0" in listing.members
    ]
    found: dict[tuple[str, int], int] = {}
    for text in folder.read_all(paths).values():
        _, _, offset = text.lstrip("\0").partition("\n")
        if text.startswith("\0"):
            for topic, partitions in find_kafka_offset(offset).items():
                found.update({(topic, p): position for p, position in partitions.items()})
    return found
